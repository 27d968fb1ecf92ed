"""The journal's outbox: notifications that wait, were delivered, or were given up.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the notifier; `Jobs.finish` enters messages.
"""

from __future__ import annotations

import sqlite3

from daemon.journal.database import Database
from daemon.journal.rows import Message, now


class Outbox:
    """Transactions on the table `outbox`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, clock: float) -> list[Message]:
        """Notifications whose time has come, oldest first."""
        rows = self._database.read("SELECT * FROM outbox WHERE state = 'pending' AND next_at <= ? ORDER BY id LIMIT 20", clock)
        return [Message(row["id"], row["job"], row["kind"], row["title"], row["body"], row["attempts"]) for row in rows]

    def pending(self) -> int:
        """How many notifications wait."""
        return int(self._database.read("SELECT count(*) FROM outbox WHERE state = 'pending'")[0][0])

    def delivered(self, message: int) -> None:
        """A notification has arrived."""
        self._database.write("delivered", lambda c: c.execute(
            "UPDATE outbox SET state = 'delivered', delivered = ?, attempts = attempts + 1 WHERE id = ?", (now(), message),
        ))  # fmt: skip

    def undelivered(self, message: int, error: str, next_at: float | None) -> None:
        """A delivery failed; try again at `next_at`, or give up where it is None."""
        self._database.write("undelivered", lambda c: c.execute(
            "UPDATE outbox SET state = ?, attempts = attempts + 1, last_error = ?, next_at = ? WHERE id = ?",
            ("pending" if next_at is not None else "abandoned", error[:500], next_at or 0, message),
        ))  # fmt: skip

    def announce(self, occasion: str, kind: str, title: str, body: str) -> bool:
        """A notification that belongs to no job, once for each `occasion`; says whether it is new."""

        def add(c: sqlite3.Connection) -> bool:
            name = f"announced:{occasion}"
            if not c.execute("INSERT OR IGNORE INTO control (name, value, at) VALUES (?, '', ?)", (name, now())).rowcount:
                return False
            c.execute("INSERT INTO outbox (job, kind, title, body, created) VALUES ('', ?, ?, ?, ?)", (kind, title, body, now()))
            return True

        return self._database.write("announce", add)

    def hasten(self) -> None:
        """Whatever waits for its next attempt is due now."""
        self._database.write("hasten-messages", lambda c: c.execute("UPDATE outbox SET next_at = 0 WHERE state = 'pending'"))
