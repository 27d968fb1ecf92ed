"""Users' commands to the queue: cancel, pause, resume, put first. Written by the command line, read by the running daemon.

A part of `daemon.journal.journal.Journal`; each method is one transaction and answers whether anything changed.
"""

from __future__ import annotations

import sqlite3

from daemon.journal.file.database import Database
from daemon.journal.rows import now

PAUSED = "paused"


class Controls:
    """Transactions for users' commands, on the tables `job` and `control`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def cancel(self, job: str, reason: str) -> bool:
        """An open job ends as cancelled; the daemon ends its children and clears it away."""
        return bool(self._database.write("cancel-job", lambda c: c.execute(
            "UPDATE job SET state = 'cancelled', ended = ?, reason = ?, untidy = 1 WHERE id = ? AND state IN ('pending', 'running')",
            (now(), reason, job),
        ).rowcount))  # fmt: skip

    def pause(self, job: str, paused: bool) -> bool:
        """An open job starts no further stage, or may again."""
        return bool(self._database.write("pause-job", lambda c: c.execute(
            "UPDATE job SET paused = ? WHERE id = ? AND paused <> ? AND state IN ('pending', 'running')", (paused, job, paused),
        ).rowcount))  # fmt: skip

    def prefer(self, job: str) -> bool:
        """A pending job goes before all others."""
        return bool(self._database.write("prefer-job", lambda c: c.execute(
            "UPDATE job SET priority = 1 + (SELECT COALESCE(max(priority), 0) FROM job WHERE state = 'pending' AND priority > 0)"
            " WHERE id = ? AND state = 'pending'", (job,),
        ).rowcount))  # fmt: skip

    def pause_all(self, paused: bool) -> bool:
        """No job starts a further stage, or all may again. Checkpoints are taken in and pinned all the same."""

        def pause(c: sqlite3.Connection) -> bool:
            if not paused:
                return bool(c.execute("DELETE FROM control WHERE name = ?", (PAUSED,)).rowcount)
            return bool(c.execute("INSERT OR IGNORE INTO control (name, value, at) VALUES (?, '', ?)", (PAUSED, now())).rowcount)

        return self._database.write("pause-all", pause)

    def paused_since(self) -> str | None:
        """When everything was paused; None while it is not."""
        rows = self._database.read("SELECT at FROM control WHERE name = ?", PAUSED)
        return str(rows[0][0]) if rows else None

    def heartbeat(self) -> None:
        """Write something, to know that the journal still takes it."""
        self._database.write("heartbeat", lambda c: c.execute(
            "INSERT OR REPLACE INTO control (name, value, at) VALUES ('heartbeat', '', ?)", (now(),)
        ))  # fmt: skip
