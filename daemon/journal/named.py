"""Which job a person means: by its id or a part of it, by run and step, or by the folder of its checkpoint or of its export."""

from __future__ import annotations

import os
import re
import sqlite3

from daemon.journal.legible import json_at
from daemon.journal.overview import is_meant

_STEP = re.compile(r"(?:step-|checkpoint-)?0*(\d+)")


def ids_named(connection: sqlite3.Connection, wanted: str) -> list[str]:
    """The job whose id is `wanted`, else those whose id begins with it, else those that `is_meant` takes, else those of that run and step
    (`my-run/500`, `my-run/step-500`, `my-run/final`), else those of that folder. Of several, superseded ones are meant last.
    """
    if not wanted:
        return []
    if connection.execute("SELECT 1 FROM job WHERE id = ?", (wanted,)).fetchone():
        return [wanted]
    rows = connection.execute(
        f"SELECT id, run, step, state, target, {json_at('checkpoint', 'path')} AS path, {json_at('checkpoint', 'ending')} AS ending"
        " FROM job ORDER BY created, id"
    ).fetchall()
    ids = [str(row["id"]) for row in rows]
    by_id = [id for id in ids if id.startswith(wanted)] or [id for id in ids if is_meant(id, wanted)]
    if by_id or "/" not in wanted:
        return by_id
    meant = [row for row in rows if _is_step(row, wanted)] or [row for row in rows if _is_folder(row, wanted)]
    current = [row for row in meant if row["state"] != "superseded"]
    return [str(row["id"]) for row in current or meant]


def _is_step(row: sqlite3.Row, wanted: str) -> bool:
    """Whether `wanted` is the job's run, a slash and its step."""
    run, _, step = wanted.rpartition("/")
    if row["run"] != run:
        return False
    number = _STEP.fullmatch(step)
    return step == "final" if row["ending"] else number is not None and int(number[1]) == row["step"]


def _is_folder(row: sqlite3.Row, wanted: str) -> bool:
    """Whether `wanted` is the folder of the job's checkpoint or of its export, also by a link such as `latest`."""
    folders = {str(row["path"]), str(row["target"]), f"{row['target']}.failed"}
    return not folders.isdisjoint((os.path.abspath(wanted), os.path.realpath(wanted)))
