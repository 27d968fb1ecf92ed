"""Names of runs as far ends allow them: the run's own where it may be one, else one that tells runs apart by a digest. Pure."""

from __future__ import annotations

import hashlib
import re


def short(run: str) -> str:
    """A run as the names of models have it: letters, digits, `_` and `-`, at most 50 of them and a digest."""
    return _plain(run, r"[^A-Za-z0-9_]+", 50)


def long(run: str) -> str:
    """A run as folders, tags of git and registries, and repositories of the Hub have it: as `short`, with `.` but not `..`, at most 80 and
    a digest."""
    return _plain(run, r"(?:[^A-Za-z0-9_.]|\.{2,})+", 80)


def _plain(run: str, others: str, most: int) -> str:
    plain = re.sub(others, "-", run).strip("-.")
    return run if plain == run and len(run) <= most else f"{plain[:most].strip('-.') or 'run'}-{digest_of(run)}"


def digest_of(run: str) -> str:
    """Eight digits by which runs whose names look alike are told apart."""
    return hashlib.sha256(run.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def of_run(pattern: str, run: str) -> str:
    """A name with the run's in the place of `{run}`."""
    return pattern.replace("{run}", short(run))
