"""What is carried to a target, and how long one that fails is left alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from daemon.contract.jobs.messages import Verdict
from daemon.delivering.endpoint import Endpoint

FIRST_PAUSE = 30.0
LONGEST_PAUSE = 3600.0
PATIENCE_SECONDS = 7 * 86_400.0
"""How long a far end may be away: over a week's end, with somebody who sees it afterwards."""
LEAST_ATTEMPTS = 20
"""That a delivery of any age has: a daemon that was off for a week has not tried meanwhile."""


@dataclass(frozen=True)
class Ended:
    """An export that was just published, as far as it matters here."""

    run: str
    step: int
    ending: bool
    """Whether it is of the end of the training, which has every step's rank."""
    published: Mapping[str, Verdict]
    """Variant → verdict, of what lies in the export."""
    others: frozenset[str]
    """Variants that the job was to make and that do not lie there."""
    is_best: bool
    """Whether the run's `best` stands for it."""


def carried(target: Endpoint, ended: Ended) -> tuple[str, ...] | None:
    """The variants of an export that a target gets; None where it gets nothing of it.

    With `passed` and `best` those that passed, and nothing where one that the table names did not.
    """
    if not target.is_for(ended.run) or (target.steps and not ended.ending and ended.step % target.steps):
        return None
    if target.policy == "best" and not ended.is_best:
        return None
    there = sorted(ended.published)
    if target.policy != "all":
        there = [name for name in there if ended.published[name] is Verdict.PASSED]
        missing = {*ended.published, *ended.others} - {*there}
        if any(_fits(name, target.variants) for name in missing):
            return None
    return chosen(target, there) or None


def chosen(target: Endpoint, there: Sequence[str]) -> tuple[str, ...]:
    """What a target takes of what lies there: what the table names, else the first that fits its kind, else all."""
    named, fitting = target.variants, target.declared.variants
    if named:
        return tuple(name for name in there if _fits(name, named))
    if fitting:
        return tuple(name for pattern in fitting for name in there if fnmatchcase(name, pattern))[:1]
    return tuple(there)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def pause_after(failures: int) -> float:
    """Seconds until the next attempt after so many failed ones in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(failures, 1) - 1, 20))


def is_given_up(attempts: int, failing_since: float | None, clock: float) -> bool:
    """Whether what may pass has failed for so long that a person must look."""
    return failing_since is not None and attempts >= LEAST_ATTEMPTS and clock - failing_since >= PATIENCE_SECONDS
