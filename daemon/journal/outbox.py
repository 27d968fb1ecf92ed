"""The journal's outbox: notifications, whom each is for, and what became of each for each of those.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the notifier; `Jobs.finish` enters messages. A target
is one URL of `notify.urls`, known here by its digest alone. A message is for the targets that there are when it is entered, and no others.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from daemon.journal.file.database import Database
from daemon.journal.rows import Message, now

SALT = "notify-salt"
"""Row of the table `control` that holds the random key of the targets' digests, in hexadecimal."""
_UNADDRESSED = "state = 'pending' AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.message = outbox.id)"

_FIRST = (
    "SELECT t.digest, t.failures, d.attempts, o.id, o.job, o.kind, o.title, o.body,"
    " COALESCE(CAST(strftime('%s', o.created) AS INTEGER), 0) created FROM target t CROSS JOIN delivery d ON d.target = t.digest"
    " AND d.state = 'pending' AND d.message = (SELECT min(message) FROM delivery WHERE target = t.digest AND state = 'pending')"
    " JOIN outbox o ON o.id = d.message"
)
"""The oldest message that waits for each target. CROSS JOIN: SQLite would go through all that waits and ask each row for its target."""


@dataclass(frozen=True)
class Target:
    """A service that is told, as the journal knows it."""

    digest: str
    """Keyed digest of its URL."""
    place: str
    """What people know it by, without secrets: `notify.urls.0 (slack)`."""


@dataclass(frozen=True)
class Due:
    """A message that is to be sent to one target now."""

    target: str
    """Digest of the target."""
    message: Message
    attempts: int
    """Attempts to send this message to this target that have been begun."""
    failures: int
    """Attempts in a row that have failed at the target, whatever the message."""


@dataclass(frozen=True)
class Dropped:
    """What can no longer be delivered since its target is gone from the configuration."""

    place: str
    messages: int


class Outbox:
    """Transactions on the tables `outbox`, `target` and `delivery`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def salt(self) -> bytes:
        """The random key of this journal's digests; made when it is first asked for."""

        def make(c: sqlite3.Connection) -> bytes:
            c.execute("INSERT OR IGNORE INTO control (name, value, at) VALUES (?, ?, ?)", (SALT, secrets.token_hex(16), now()))
            return bytes.fromhex(c.execute("SELECT value FROM control WHERE name = ?", (SALT,)).fetchone()[0])

        return self._database.write("notify-salt", make)

    def adopt(self, targets: Sequence[Target]) -> list[Dropped]:
        """From now on these are told. Gives what was still to be told to others; messages that nobody was named for go to all of these.

        A target that stays keeps what waits for it, and is tried at once.
        """

        def adopt(c: sqlite3.Connection) -> list[Dropped]:
            there = {target.digest for target in targets}
            gone = [(row[0], row[1]) for row in c.execute("SELECT digest, place FROM target") if row[0] not in there]
            dropped = [Dropped(place, _end_all(c, digest, "dropped")) for digest, place in gone]
            c.executemany("DELETE FROM target WHERE digest = ?", [(digest,) for digest, _ in gone])
            c.executemany(
                "INSERT INTO target (digest, place) VALUES (?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET place = excluded.place, next_at = 0",
                [(target.digest, target.place) for target in targets],
            )  # fmt: skip
            if not targets and (count := c.execute(f"UPDATE outbox SET state = 'abandoned' WHERE {_UNADDRESSED}").rowcount):
                dropped.append(Dropped("nobody", count))
            c.execute(f"INSERT INTO delivery (message, target) SELECT id, digest FROM outbox, target WHERE outbox.{_UNADDRESSED}")
            return [entry for entry in dropped if entry.messages]

        return self._database.write("adopt-targets", adopt)

    def unaddressed(self) -> bool:
        """Whether a message waits of which it is not known yet whom it is for."""
        return bool(self._database.read(f"SELECT 1 FROM outbox WHERE {_UNADDRESSED} LIMIT 1"))

    def due(self, clock: float, longest_pause: float) -> list[Due]:
        """The oldest message that waits for each target whose time has come, targets without failures first.

        A wall clock that was set back by more than the longest pause does not hold a target up.
        """
        rows = self._database.read(
            f"{_FIRST} WHERE (t.next_at <= ?1 OR t.next_at > ?1 + ?2) ORDER BY t.failures, o.id", clock, longest_pause
        )  # fmt: skip
        return [_due(row) for row in rows]

    def next_due(self) -> float | None:
        """When the next target's time comes; None where nothing waits."""
        due = self._database.read(
            "SELECT min(next_at) FROM target WHERE EXISTS (SELECT 1 FROM delivery WHERE target = digest AND state = 'pending')"
        )[0][0]
        return None if due is None else float(due)

    def pending(self) -> int:
        """How many notifications wait."""
        return int(self._database.read("SELECT count(*) FROM outbox WHERE state = 'pending'")[0][0])

    def claim(self, message: int, target: str) -> None:
        """An attempt to send a message to a target begins."""
        self._database.write("claim-delivery", lambda c: _claim(c, message, target))

    def delivered(self, message: int, target: str, *, go_on: bool = False) -> Due | None:
        """A target has taken a message. `go_on`: an attempt at the next one that waits for it begins, in the same transaction; gives it."""

        def end(c: sqlite3.Connection) -> Due | None:
            c.execute("UPDATE target SET failures = 0, next_at = 0, last_error = NULL WHERE digest = ?", (target,))
            _end(c, message, target, "delivered")
            row = c.execute(f"{_FIRST} WHERE t.digest = ?", (target,)).fetchone() if go_on else None
            if row is None:
                return None
            following = _due(row)
            _claim(c, following.message.id, target)
            return following

        return self._database.write("delivered", end)

    def undelivered(self, target: str, error: str, next_at: float) -> None:
        """An attempt at a target failed; what waits for it is tried again at `next_at`."""
        self._database.write("undelivered", lambda c: c.execute(
            "UPDATE target SET failures = failures + 1, last_error = ?, next_at = ? WHERE digest = ?", (error[:500], next_at, target),
        ))  # fmt: skip

    def looked_at(self, target: str, error: str | None, never: str) -> None:
        """What is known of a target before anything is sent: why it is no service, or that it is one. `never`: what is over then."""

        def know(c: sqlite3.Connection) -> None:
            if error is not None:
                c.execute("UPDATE target SET failures = max(1, failures), last_error = ? WHERE digest = ?", (error[:500], target))
            else:
                c.execute("UPDATE target SET failures = 0, last_error = NULL WHERE digest = ? AND last_error = ?", (target, never))

        self._database.write("look-at-target", know)

    def give_up(self, target: str, message: int, error: str, next_at: float, older_than: float) -> int:
        """A message, and what waits for the same target since before `older_than` (s since the epoch), is tried no more.

        Gives how many those are. The target's other messages go on at `next_at`.
        """

        def give_up(c: sqlite3.Connection) -> int:
            c.execute(
                "UPDATE target SET failures = failures + 1, last_error = ?, next_at = ? WHERE digest = ?", (error[:500], next_at, target)
            )
            also = "AND (message = ? OR message IN (SELECT id FROM outbox WHERE CAST(strftime('%s', created) AS INTEGER) < ?))"
            return _end_all(c, target, "abandoned", also, (message, older_than))

        return self._database.write("give-up", give_up)

    def announce(self, occasion: str, kind: str, title: str, body: str) -> bool:
        """A notification that belongs to no job, once for each `occasion`; says whether it is new."""

        def add(c: sqlite3.Connection) -> bool:
            name = f"announced:{occasion}"
            if not c.execute("INSERT OR IGNORE INTO control (name, value, at) VALUES (?, '', ?)", (name, now())).rowcount:
                return False
            enter_message(c, "", kind, title, body)
            return True

        return self._database.write("announce", add)

    def hasten(self) -> None:
        """Every target may be tried now."""
        self._database.write("hasten-messages", lambda c: c.execute("UPDATE target SET next_at = 0"))


def enter_message(c: sqlite3.Connection, job: str, kind: str, title: str, body: str) -> None:
    """Inside a transaction: a message for all targets that there are; one without any waits for the next `Outbox.adopt`."""
    message = c.execute(
        "INSERT INTO outbox (job, kind, title, body, created) VALUES (?,?,?,?,?)", (job, kind, title, body, now())
    ).lastrowid
    c.execute("INSERT INTO delivery (message, target) SELECT ?, digest FROM target", (message,))


def _due(row: sqlite3.Row) -> Due:
    message = Message(row["id"], row["job"], row["kind"], row["title"], row["body"], row["created"])
    return Due(row["digest"], message, row["attempts"], row["failures"])


def _claim(c: sqlite3.Connection, message: int, target: str) -> None:
    c.execute("UPDATE delivery SET attempts = attempts + 1 WHERE message = ? AND target = ?", (message, target))


def _end(c: sqlite3.Connection, message: int, target: str, state: str) -> None:
    """A delivery has ended, and with the last one its message."""
    c.execute(
        "UPDATE delivery SET state = ?, ended = ? WHERE message = ? AND target = ? AND state = 'pending'", (state, now(), message, target)
    )
    left = {str(row[0]) for row in c.execute("SELECT DISTINCT state FROM delivery WHERE message = ?", (message,))}
    if "pending" not in left:
        good = "delivered" in left and "abandoned" not in left
        c.execute(
            "UPDATE outbox SET state = ?, delivered = ? WHERE id = ?",
            ("delivered" if good else "abandoned", now() if good else None, message),
        )  # fmt: skip


def _end_all(c: sqlite3.Connection, target: str, state: str, also: str = "", values: tuple[object, ...] = ()) -> int:
    """End what waits for a target; gives how many those were."""
    rows = c.execute(f"SELECT message FROM delivery WHERE target = ? AND state = 'pending' {also}", (target, *values)).fetchall()
    for row in rows:
        _end(c, row[0], target, state)
    return len(rows)
