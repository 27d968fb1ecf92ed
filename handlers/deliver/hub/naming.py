"""Names that a run has at the Hub, which knows fewer letters than file systems do. Pure."""

from __future__ import annotations

import re

from handlers.deliver.names import long

WORK = "ckptd-work-"
"""Begins the name of the branch on which a version is put together."""
OWN_NAME = re.compile(r"[A-Za-z0-9_.-]+-\d+-[0-9a-f]{8}")


def repository_of(pattern: str, run: str) -> str:
    """The repository of a run: two runs never share one where the pattern has `{run}`."""
    return pattern.replace("{run}", long(run))


def repository_pattern(pattern: str) -> re.Pattern[str]:
    """What the names of such repositories look like."""
    return re.compile(".+".join(re.escape(part) for part in pattern.split("{run}")))
