"""The journal's rows as values, and how they are read from SQLite."""

from __future__ import annotations

import functools
import json
import sqlite3
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import CheckpointRef, StageResult
from daemon.contract.jobs.terms import Terms, terms_of
from daemon.contract.light import dataclass
from daemon.contract.values import Json

if TYPE_CHECKING:
    from daemon.contract.jobs.options import Work

Columns: TypeAlias = sqlite3.Row | Mapping[str, Any]
"""A row of a table, by its columns' names."""


def now() -> str:
    """The wall clock as ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class JobRow:
    """A job as the journal holds it."""

    id: str
    state: str
    checkpoint: CheckpointRef
    options: Work | str
    """Its configuration, or the JSON text of it."""
    pin: Path
    target: Path
    base: Path | None
    created: str
    started: str | None
    ended: str | None
    warnings: tuple[str, ...] = ()
    """What the report says beside the stages' own warnings."""
    reason: str | None = None
    """Why it was superseded or cancelled, or why its export was not published."""
    untidy: bool = False
    """Superseded or cancelled, and not cleared away yet."""
    paused: bool = False
    """Starts no further stage until a person says so."""
    first: bool = False
    """Waits at the front of the queue, where `ckptd queue first` put it."""

    @functools.cached_property
    def work(self) -> Work:
        """Its configuration; of one that another version wrote, every key that this one understands."""
        from daemon.contract.jobs.options import Work

        return Work.recovered(self.options) if isinstance(self.options, str) else self.options

    @functools.cached_property
    def terms(self) -> Terms:
        """What of its configuration decides verdicts: read without the models of all options, which `ckptd status` has no time for."""
        return terms_of(self.options) if isinstance(self.options, str) else self.options


@dataclass(frozen=True)
class Lane:
    """A run with pending jobs, as the queue sees it. Times are ISO 8601."""

    root: str
    run: str
    newest_first: bool
    oldest: str
    """When its oldest pending job was entered."""
    served: str | None
    """When a job of the run was last started."""
    root_served: str | None = None
    """When a job of any run of its root was last started."""


@dataclass(frozen=True)
class StageRow:
    """A stage of a job as the journal holds it."""

    name: str
    state: str
    attempts: int
    failures: int
    retry_at: float | None
    retry_delay: float | None
    folder: Path | None
    result: StageResult | None
    fault: Fault | None
    key: str | None = None
    """Digest of all that determines its output, as it was when it was last claimed."""
    crashes: int = 0
    """How often the daemon died while it ran."""

    def due(self, clock: float) -> bool:
        """Whether a retry need not wait any longer; a wall clock that was set back does not hold it up."""
        if self.retry_at is None or self.retry_delay is None:
            return True
        return clock >= self.retry_at or self.retry_at - clock > self.retry_delay


@dataclass(frozen=True)
class AttemptId:
    """What identifies an attempt."""

    job: str
    stage: str
    number: int
    """Counted from 1 within the job's stage."""


@dataclass(frozen=True)
class AttemptRow:
    """An attempt as the journal holds it."""

    job: str
    stage: str
    number: int
    strategy: str
    outcome: str | None
    folder: Path
    staging: Path
    estimate: int | None
    executor_id: str | None
    """What names it to its executor; None where the daemon died before it knew."""
    started: str
    ended: str | None
    fault: Fault | None

    @property
    def id(self) -> AttemptId:
        """What identifies it."""
        return AttemptId(self.job, self.stage, self.number)


@dataclass(frozen=True)
class Notice:
    """What is to be told of an event."""

    kind: str
    """The event."""
    title: str
    body: str
    about: Json = field(default_factory=dict)
    """For programs: "events" (those that it is about, where there are more than `kind`), "run", and what else there is to know."""

    @property
    def events(self) -> tuple[str, ...]:
        """The events that it is about."""
        return tuple(map(str, self.about.get("events") or (self.kind,)))


@dataclass(frozen=True)
class Message:
    """A notification of the outbox."""

    id: int
    job: str
    kind: str
    title: str
    body: str
    created: int
    """Seconds since the epoch."""
    about: Json = field(default_factory=dict)
    """What programs are told of it: see `Notice`."""
    key: str = ""
    """What names it to one target, the same at each attempt."""


def fault_of(text: str | None) -> Fault | None:
    """Return the fault that a column holds as JSON."""
    return Fault.model_validate_json(text) if text else None


@functools.lru_cache(64)
def _result(text: str | None) -> StageResult | None:
    """None too for one that another version wrote and this one can't read: the stage is then made again.

    The runner reads a job's stages in each of its rounds, and what has ended stays as it is.
    """
    try:
        return StageResult.model_validate_json(text) if text else None
    except ValueError:
        return None


_checkpoint = functools.lru_cache(16)(CheckpointRef.model_validate_json)


@functools.lru_cache(16)
def _shared(text: str) -> str:
    """The same text in one object: most jobs have one configuration, and a thousand of them may be held."""
    return text


def job_of(row: Columns) -> JobRow:
    """A row of the table `job`."""
    return JobRow(
        row["id"], row["state"], _checkpoint(row["checkpoint"]), _shared(row["work"]),
        Path(row["pin"]), Path(row["target"]), Path(row["base"]) if row["base"] else None, row["created"], row["started"], row["ended"],
        tuple(json.loads(row["warnings"])), row["reason"], bool(row["untidy"]), bool(row["paused"]),
        row["state"] == "pending" and row["priority"] > 0,
    )  # fmt: skip


def stage_of(row: Columns) -> StageRow:
    """A row of the table `stage`."""
    return StageRow(
        row["name"], row["state"], row["attempts"], row["failures"], row["retry_at"], row["retry_delay"],
        Path(row["folder"]) if row["folder"] else None,
        _result(row["result"]), fault_of(row["fault"]), row["key"], row["crashes"],
    )  # fmt: skip
