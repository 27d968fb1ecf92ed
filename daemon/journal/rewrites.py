"""Checkpoints that are written again before an export of them ends, time and again: their jobs give way one after the other.

Follows from the rows of the table `job` alone. Asked by the intake, which says it in the log, and for `ckptd status`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from daemon.contract.light import dataclass
from daemon.journal.legible import json_at

IN_PLACE = "the trainer rewrote "
"""So begins the reason of a job whose pinned files were written into; that of one whose directory was taken anew is BY and the new job."""
BY = "superseded by "
OFTEN = 3
"""So many times in a row are said."""
REMEDY = (
    "the trainer overwrites this directory faster than exports finish: let it save each step into a separate directory, raise"
    " watch.settle_seconds above the time between two saves, take fewer of them with [select], or ask for fewer export.variants"
)


@dataclass(frozen=True)
class Rewritten:
    """A checkpoint's directory whose last exports were all replaced, because the contents changed again."""

    path: str
    count: int
    """Number of replaced exports in a row, without one that ended."""
    since: str
    """Time when the first of them was replaced; ISO 8601 in UTC."""

    def sentence(self) -> str:
        """What happened, and what to do."""
        return f"{self.path} was written again {self.count} times in a row before an export of it ended; {REMEDY}"


_ENDED = (
    f"SELECT id, {json_at('checkpoint', 'path')} AS path, state, COALESCE(reason, '') AS reason, ended FROM job WHERE run {{}}"
    " ORDER BY ended, rowid"
)
OF_RUN = _ENDED.format("= ?")
OF_ALL = _ENDED.format("IN (SELECT run FROM job WHERE state = 'superseded')")
"""The rows for `rewritten`: of the runs of one name, or of all in which a job gave way."""


def rewritten(rows: Sequence[sqlite3.Row]) -> list[Rewritten]:
    """The directories whose last job that ended gave way so. `rows`: of the query OF_RUN or OF_ALL."""
    places = {row[0]: row[1] for row in rows}
    by_path: dict[str, Rewritten] = {}
    for _, path, state, reason, ended in rows:
        if ended is None:
            continue
        if state != "superseded":
            by_path.pop(path, None)
        elif reason.startswith(IN_PLACE) or places.get(reason.removeprefix(BY)) == path:
            before = by_path.get(path)
            by_path[path] = Rewritten(path, before.count + 1, before.since) if before else Rewritten(path, 1, ended)
    return list(by_path.values())
