"""Names that a run has at the Hub, which knows fewer letters than file systems do. Pure."""

from __future__ import annotations

import hashlib
import re

from handlers.deliver.version import Version

WORK = "ckptd-work-"
"""Begins the name of the branch on which a version is put together."""
OWN_NAME = re.compile(r"[A-Za-z0-9_.-]+-\d+-[0-9a-f]{8}")
MOST = 80
"""Letters of a run in the name of a repository."""


def name_of(version: Version) -> str:
    """The version's name as git takes it."""
    return re.sub(r"\.{2,}", ".", version.name)


def repository_of(pattern: str, run: str) -> str:
    """The repository of a run: two runs never share one where the pattern has `{run}`."""
    return pattern.replace("{run}", _plain(run))


def repository_pattern(pattern: str) -> re.Pattern[str]:
    """What the names of such repositories look like."""
    return re.compile(".+".join(re.escape(part) for part in pattern.split("{run}")))


def _plain(run: str) -> str:
    """The run's name where the Hub takes it, and else what is left of it with a digest."""
    left = re.sub(r"[^A-Za-z0-9_]*[^A-Za-z0-9_.-][^A-Za-z0-9_]*|-{2,}|\.{2,}", "-", run).strip("-.")[:MOST].strip("-.")
    if left == run:
        return run
    return f"{left or 'run'}-{hashlib.sha256(run.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
