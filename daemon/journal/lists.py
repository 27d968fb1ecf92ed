"""Parts of long lists, for display: ten thousand jobs and a thousand runs, of which a page shows some. Reads as `overview` does."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from daemon.contract.light import dataclass


@dataclass(frozen=True)
class Wanted:
    """Which jobs are listed, the one that was entered last first."""

    states: tuple[str, ...] = ()
    """Empty: of all states."""
    root: str | None = None
    """Only of this root; with `run`."""
    run: str | None = None


@dataclass(frozen=True)
class Listed:
    """A job's place in a list."""

    id: str
    state: str
    ended: str | None


@dataclass(frozen=True)
class RunRow:
    """A run with its exports."""

    root: str
    run: str
    exports: int
    step: int
    """The highest step of its exports."""
    latest: str
    """When the latest of them was entered; ISO 8601 in UTC."""
    counts: dict[str, int]
    """State → number of jobs."""


def jobs_listed(connection: sqlite3.Connection, wanted: Wanted, limit: int, offset: int = 0) -> tuple[list[Listed], int]:
    """A part of the jobs that are wanted, and how many there are."""
    clause, values = _clause(wanted)
    (total,) = connection.execute(f"SELECT count(*) FROM job {clause}", values).fetchone()
    # The ids first: sorting whole rows would read every one of them.
    rows = connection.execute(
        "SELECT id, state, ended FROM job WHERE rowid IN"
        f" (SELECT rowid FROM job {clause} ORDER BY rowid DESC LIMIT ? OFFSET ?) ORDER BY rowid DESC",
        (*values, limit, offset),
    )
    return [Listed(*row) for row in rows], int(total)


def runs_listed(connection: sqlite3.Connection, limit: int, offset: int = 0, named: str = "") -> tuple[tuple[RunRow, ...], int]:
    """A part of the runs whose names have `named` in them, the one with the latest export first, and how many there are."""
    clause, values = ("WHERE instr(lower(run), lower(?)) > 0", (named,)) if named else ("", ())
    groups = connection.execute(f"SELECT root, run, count(*), max(rowid) FROM job {clause} GROUP BY root, run ORDER BY 4 DESC", values)
    known: Sequence[sqlite3.Row] = groups.fetchall()
    rows = []
    for root, run, count, latest in known[offset : offset + limit]:
        states = connection.execute("SELECT state, count(*), max(step) FROM job WHERE run = ? AND root = ? GROUP BY state", (run, root))
        counts = {str(state): (int(number), int(step)) for state, number, step in states}
        (created,) = connection.execute("SELECT created FROM job WHERE rowid = ?", (latest,)).fetchone()
        step = max(step for _, step in counts.values())
        rows.append(RunRow(root, run, count, step, created, {state: number for state, (number, _) in counts.items()}))
    return tuple(rows), len(known)


def roots_of_run(connection: sqlite3.Connection, run: str) -> list[str]:
    """The roots below which there is a run of that name."""
    return [str(root) for (root,) in connection.execute("SELECT DISTINCT root FROM job WHERE run = ? ORDER BY root", (run,))]


def id_of_target(connection: sqlite3.Connection, target: str) -> str | None:
    """The latest job that was published as this folder; None where there is none."""
    row = connection.execute(
        "SELECT id FROM job WHERE target = ? ORDER BY state IN ('succeeded', 'partial') DESC, rowid DESC LIMIT 1", (target,)
    ).fetchone()
    return None if row is None else str(row[0])


def _clause(wanted: Wanted) -> tuple[str, tuple[str, ...]]:
    parts: list[str] = []
    values: tuple[str, ...] = ()
    if wanted.states:
        parts.append(f"state IN ({', '.join('?' * len(wanted.states))})")
        values += wanted.states
    if wanted.run is not None:
        parts.append("run = ?")
        values += (wanted.run,)
    if wanted.root is not None:
        parts.append("root = ?")
        values += (wanted.root,)
    return (f"WHERE {' AND '.join(parts)}" if parts else ""), values
