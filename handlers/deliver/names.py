"""Names of runs as far ends allow them: the run's own where it may be one, else one that tells runs apart by a digest. Pure."""

from __future__ import annotations

import hashlib
import re


def short(run: str, most: int = 50, dots: bool = False) -> str:
    """A run as letters, digits, `_` and `-`, and `.` with `dots`, at most `most` of them and a digest."""
    plain = re.sub(r"[^A-Za-z0-9_.]+" if dots else r"[^A-Za-z0-9_]+", "-", run).strip("-.")
    return run if plain == run and len(run) <= most else f"{plain[:most].strip('-.') or 'run'}-{digest_of(run)}"


def digest_of(run: str) -> str:
    """Eight digits by which runs whose names look alike are told apart."""
    return hashlib.sha256(run.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def of_run(pattern: str, run: str) -> str:
    """A name with the run's in the place of `{run}`."""
    return pattern.replace("{run}", short(run))
