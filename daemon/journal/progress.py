"""What has gone on lately: which jobs ended, and since when nothing does. For who tells people of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from daemon.journal.file.database import Database


@dataclass(frozen=True)
class EndedJob:
    """A job that ended. `ended`: ISO 8601 in UTC."""

    id: str
    run: str
    step: int
    state: str
    target: Path
    ended: str


def ended_between(database: Database, since: datetime, until: datetime) -> list[EndedJob]:
    """Return what ended in a time (its end included), in its order."""
    begin, end = (moment.astimezone(UTC).isoformat(timespec="milliseconds") for moment in (since, until))
    rows = database.read(
        "SELECT id, run, step, state, target, ended FROM job WHERE ended > ? AND ended <= ? ORDER BY ended, id", begin, end
    )
    return [EndedJob(row["id"], row["run"], row["step"], row["state"], Path(row["target"]), row["ended"]) for row in rows]


def idle_since(database: Database) -> str | None:
    """Return since when nothing has gone on though jobs are open that are not paused (ISO 8601); None where an attempt runs or none is."""
    running = database.read("SELECT 1 FROM attempt WHERE outcome IS NULL LIMIT 1")
    (begun,) = database.read("SELECT max(COALESCE(started, created)) FROM job WHERE state IN ('running', 'pending') AND paused = 0")[0]
    if running or begun is None:
        return None
    ends = [database.read(f"SELECT max(ended) FROM {table}")[0][0] for table in ("attempt", "job")]
    return max(str(begun), *(str(end) for end in ends if end is not None), "")
