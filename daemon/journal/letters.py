"""Messages that wait for a target's quiet hours to end, and those that a target never took: listed, and sent again when a person says so.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the notifier and by `ckptd notify`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from daemon.contract.light import dataclass
from daemon.journal.file.database import Database
from daemon.journal.outbox import HELD, conclude
from daemon.journal.rows import Message, Notice, now

_WAITS = "target = ? AND state = 'pending'"


@dataclass(frozen=True)
class Letter:
    """A notification that a target has not got."""

    id: int
    """What `ckptd notify resend` calls it."""
    target: str
    """Its target, by its key in the configuration."""
    state: Literal["waiting", "held", "dead"]
    """`waiting`: it is sent, or tried again; `held`: until the target's quiet hours end; `dead`: given up."""
    event: str
    """The event that it tells."""
    title: str
    """One line."""
    created: str
    """Time of the event."""
    attempts: int
    error: str | None
    """Why the last attempt failed; null if there was none."""


class Letters:
    """Transactions on the table `delivery` beside those of `Outbox`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, target: str, but: Collection[str]) -> None:
        """Hold what waits for a target until `release`, except messages about one of the events `but`."""

        def hold(c: sqlite3.Connection) -> None:
            rows = c.execute(
                f"SELECT id, kind, about FROM outbox WHERE id IN (SELECT message FROM delivery WHERE {_WAITS} AND carrier IS NULL)",
                (target,),
            ).fetchall()  # fmt: skip
            calm = [row["id"] for row in rows if set(but).isdisjoint(json.loads(row["about"]).get("events") or (row["kind"],))]
            c.executemany(f"UPDATE delivery SET carrier = ? WHERE {_WAITS} AND message = ?", [(HELD, target, message) for message in calm])

        self._database.write("hold-messages", hold)

    def holding(self) -> set[str]:
        """The targets (digests) for which messages are held."""
        held = "SELECT 1 FROM delivery WHERE target = digest AND carrier = ? AND state = 'pending'"
        rows = self._database.read(f"SELECT digest FROM target WHERE EXISTS ({held})", HELD)
        return {str(row[0]) for row in rows}

    def release(self, target: str, together: Callable[[Sequence[Message]], Notice]) -> None:
        """What is held for a target is sent: one message as it is, several as what `together` makes of them."""

        def release(c: sqlite3.Connection) -> None:
            rows = c.execute(
                "SELECT o.*, COALESCE(CAST(strftime('%s', o.created) AS INTEGER), 0) at FROM outbox o JOIN delivery d"
                " ON d.message = o.id WHERE d.target = ? AND d.state = 'pending' AND d.carrier = ? ORDER BY o.id", (target, HELD),
            ).fetchall()  # fmt: skip
            carrier = None
            if len(rows) > 1:
                notice = together([
                    Message(row["id"], row["job"], row["kind"], row["title"], row["body"], row["at"], json.loads(row["about"]))
                    for row in rows
                ])  # fmt: skip
                carrier = c.execute(
                    "INSERT INTO outbox (job, kind, title, body, about, created) VALUES ('',?,?,?,?,?)",
                    (notice.kind, notice.title, notice.body, json.dumps(dict(notice.about), ensure_ascii=False), now()),
                ).lastrowid
                c.execute("INSERT INTO delivery (message, target) VALUES (?, ?)", (carrier, target))
            c.execute(f"UPDATE delivery SET carrier = ? WHERE {_WAITS} AND carrier = ?", (carrier, target, HELD))

        self._database.write("release-messages", release)

    def resend(self, ids: Collection[int] | None) -> list[int]:
        """Let messages that were given up be sent again, to those of their targets that gave them up: these, or (None) all. Gives which."""

        def resend(c: sqlite3.Connection) -> list[int]:
            dead = "state = 'abandoned' AND target IN (SELECT digest FROM target)"
            rows = c.execute(f"SELECT message, target FROM delivery WHERE {dead} AND carrier IS NULL ORDER BY message").fetchall()
            those = [(row["message"], row["target"]) for row in rows if ids is None or row["message"] in ids]
            changed = set[int]()
            for message, target in those:
                changed.update(row[0] for row in c.execute(
                    f"UPDATE delivery SET state = 'pending', attempts = 0, ended = NULL, error = NULL WHERE {dead} AND target = ?"
                    " AND (message = ? OR carrier = ?) RETURNING message", (target, message, message),
                ).fetchall())  # fmt: skip
                c.execute("UPDATE target SET failures = 0, next_at = 0 WHERE digest = ?", (target,))
            for message in changed:
                conclude(c, message)
            return sorted({message for message, _ in those})

        return self._database.write("resend-messages", resend)


def letters(connection: sqlite3.Connection) -> tuple[Letter, ...]:
    """What those who are told now have not got, the oldest first; what another message stands for is left out."""
    rows = connection.execute(
        "SELECT o.id, t.place, d.state, d.carrier, o.kind, o.title, o.created, d.attempts, d.error, t.last_error FROM delivery d"
        " JOIN outbox o ON o.id = d.message JOIN target t ON t.digest = d.target"
        " WHERE d.state IN ('pending', 'abandoned') AND COALESCE(d.carrier, 0) = 0 ORDER BY o.id, t.rowid"
    )
    return tuple(
        Letter(
            row["id"], row["place"],
            "dead" if row["state"] == "abandoned" else "held" if row["carrier"] == HELD else "waiting",
            row["kind"], row["title"], row["created"], row["attempts"],
            row["error"] or (row["last_error"] if row["state"] == "pending" and row["attempts"] else None),
        )
        for row in rows
    )  # fmt: skip
