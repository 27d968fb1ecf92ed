"""All exports and all runs, a page at a time: what the API gives of a journal with thousands of jobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection

from daemon.config.places.paths import StatePaths
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.journal.file.opening import reading
from daemon.journal.overview import Place, RunView, jobs_before, runs_of
from daemon.operating.monitoring.filter import Filter
from daemon.operating.monitoring.status import JobStatus, look_through

MOST_JOBS = 200
"""Of a page."""
MOST_LOOKED_AT = 400
"""Jobs that are looked at for a page: it may hold fewer than were asked for, and another one follow."""


@dataclass(frozen=True)
class JobsPage:
    """Exports, the newest first. What is entered meanwhile comes before the first page, and moves no other."""

    jobs: tuple[JobStatus, ...]
    """At most as many as were asked for; fewer, or none, may be followed by more."""
    next: str | None
    """What to give as `before` for the next page; None after the last."""


@dataclass(frozen=True)
class RunsPage:
    """Runs, those with the newest checkpoints first."""

    runs: tuple[RunView, ...]
    """At most as many as were asked for."""
    total: int
    """Number of all runs."""


def jobs_page(state: Path, wanted: Filter, limit: int, before: str | None = None) -> JobsPage:
    """A page of the exports that are wanted: of those that were entered before the job `before`. Raises UsageError where that is none."""
    limit = max(1, min(limit, MOST_JOBS))
    is_run = wanted.takes_run if wanted.run else None
    since = wanted.since.isoformat(timespec="milliseconds") if wanted.since else ""

    def select(connection: Connection) -> Iterator[Place]:
        try:
            yield from jobs_before(
                connection, before, wanted.journal_states, since, is_run, wanted.exactly, wanted.root, by_end=wanted.by_end
            )
        except LookupError:
            raise UsageError(
                FaultCode.NO_SUCH_JOB, "show the page", f"there is no job {before!r} after which it begins", "begin with the first page"
            ) from None

    def take(jobs: Iterator[JobStatus]) -> JobsPage:
        taken: list[JobStatus] = []
        last: JobStatus | None = None
        for job in itertools.islice(jobs, MOST_LOOKED_AT):
            if len(taken) == limit:
                return JobsPage(tuple(taken), last.id if last else None)
            last = job
            taken += [job] if wanted.takes(job) else []
        return JobsPage(tuple(taken), last.id if last and next(jobs, None) else None)

    return look_through(state, select, take) or JobsPage((), None)


def runs_page(state: Path, limit: int) -> RunsPage:
    """The first runs, and how many there are."""
    try:
        with reading(StatePaths(state).journal) as connection:
            every = runs_of(connection)
    except FileNotFoundError:
        every = ()
    return RunsPage(every[:limit], len(every))
