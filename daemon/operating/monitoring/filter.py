"""Which exports `ckptd list` and the API show: by run, by state, by when their checkpoint was taken or they ended."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.journal.states import ENDED_JOB, OPEN_JOB

if TYPE_CHECKING:
    from daemon.operating.monitoring.status import JobStatus

OPEN, ENDED = "open", "ended"
STATES = ("pending", "running", "waiting", "paused", "stopped", *ENDED_JOB, OPEN, ENDED)
"""What `--state` takes: states of the journal, what becomes of an export now, and all that have (not) ended."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class Filter:
    """Which exports are wanted; all of them, where nothing is said."""

    run: str = ""
    """Name of the run, or a pattern with * and ?."""
    states: tuple[str, ...] = ()
    since: datetime | None = None
    exactly: str | None = None
    """Name of the run, in which nothing stands for anything else."""
    by_end: bool = False
    """Whether `since` asks when an export ended, where it has ended, and not when its checkpoint was taken."""
    root: str = ""
    """The watched directory below which that run lies; any, where nothing is said."""

    @classmethod
    def of(cls, run: str, states: Sequence[str], since: str, option: str = "--", *, by_end: bool = False) -> Filter:
        """Make it from what the options say, whose names begin with `option`. Raises UsageError for a state or a time that is none."""
        for state in states:
            if state not in STATES:
                raise UsageError(
                    FaultCode.BAD_OPTION, f"use {option}state", f"{state!r} is not a state", f"give one of {', '.join(STATES)}"
                )
        try:
            return cls(run, tuple(states), moment(since) if since else None, by_end=by_end)
        except (ValueError, OverflowError):
            raise UsageError(
                FaultCode.BAD_OPTION, f"use {option}since", f"{since!r} is neither a duration nor a date",
                'give a duration like "30m", "2h" or "3d", a date like "2026-01-31", or a time like "2026-01-31 14:00"',
            ) from None  # fmt: skip

    @property
    def journal_states(self) -> tuple[str, ...]:
        """The states of the journal that an export which is wanted may be in; none stands for all."""
        if not self.states or (ENDED in self.states and OPEN in self.states):
            return ()
        wanted = {state for state in self.states if state in ENDED_JOB}
        wanted |= set(ENDED_JOB) if ENDED in self.states else set()
        return tuple(sorted(wanted | (set(OPEN_JOB) if set(self.states) - set(ENDED_JOB) - {ENDED} else set())))

    def takes_run(self, run: str) -> bool:
        """Whether a run is wanted."""
        if self.exactly is not None and run != self.exactly:
            return False
        return not self.run or run == self.run or fnmatch.fnmatchcase(run, self.run)

    def takes(self, job: JobStatus) -> bool:
        """Whether an export is wanted."""
        known = {job.state, job.activity, ENDED if job.state in ENDED_JOB else OPEN}
        late = self.since is None or datetime.fromisoformat((self.by_end and job.ended) or job.created) >= self.since
        return self.takes_run(job.run) and late and (not self.states or not known.isdisjoint(self.states))


def moment(text: str) -> datetime:
    """The time that `--since` names: so long ago ("90s", "30m", "2h", "3d", "1w"), or a date or time on the reader's clock.

    Raises ValueError or OverflowError for anything else.
    """
    number, unit = text.strip()[:-1], text.strip()[-1:]
    if unit in _UNITS and number.replace(".", "", 1).isdecimal():
        return datetime.fromtimestamp(time.time() - float(number) * _UNITS[unit], UTC)
    return datetime.fromisoformat(text.strip()).astimezone(UTC)
