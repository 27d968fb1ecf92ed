"""The journal's outbox: notifications, whom each is for, and what became of each for each of those.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by the notifier; `Jobs` enters messages. A target is one
of `notify.targets` or one URL of `notify.urls`, known here by its digest alone. A message is for those of the targets that there are when
it is entered that want to be told of it, and no others.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from daemon.contract.light import dataclass
from daemon.contract.values import Json
from daemon.journal.file.database import Database
from daemon.journal.rows import Message, Notice, now

SALT = "notify-salt"
"""Row of the table `control` that holds the random key of the targets' digests, in hexadecimal."""
_UNADDRESSED = "state = 'pending' AND NOT EXISTS (SELECT 1 FROM delivery WHERE delivery.message = outbox.id)"
HELD = 0
"""The column `carrier` of a delivery that waits for the end of quiet hours."""
_LEFT = "(SELECT 1 FROM delivery WHERE message = outbox.id AND state = 'pending' AND carrier"
ONLY_HELD = f"(EXISTS {_LEFT} = {HELD}) AND NOT EXISTS {_LEFT} IS NOT {HELD}))"
"""Of a message that waits: that all who have not got it have quiet hours."""

_FIRST = (
    "SELECT t.digest, t.failures, d.attempts, o.id, o.job, o.kind, o.title, o.body, o.about,"
    " COALESCE(CAST(strftime('%s', o.created) AS INTEGER), 0) created FROM target t CROSS JOIN delivery d ON d.target = t.digest"
    " AND d.state = 'pending' AND d.message ="
    " (SELECT min(message) FROM delivery WHERE target = t.digest AND state = 'pending' AND carrier IS NULL)"
    " JOIN outbox o ON o.id = d.message"
)
"""The oldest message that waits for each target and is not held.

CROSS JOIN: SQLite would go through all that waits and ask each row for its target."""


@dataclass(frozen=True)
class Target:
    """A service that is told, as the journal knows it."""

    digest: str
    """Of its name, or (keyed) of its URL."""
    place: str
    """What people know it by, without secrets: `notify.urls.0 (slack)`."""
    wants: str = "{}"
    """What it is told of: JSON with `on` (events) and `runs` (patterns); without them everything."""


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
                "INSERT INTO target (digest, place, wants) VALUES (?, ?, ?)"
                " ON CONFLICT (digest) DO UPDATE SET place = excluded.place, wants = excluded.wants, next_at = 0",
                [(target.digest, target.place, target.wants) for target in targets],
            )  # fmt: skip
            if not targets and (count := c.execute(f"UPDATE outbox SET state = 'abandoned' WHERE {_UNADDRESSED}").rowcount):
                dropped.append(Dropped("nobody", count))
            for row in c.execute(f"SELECT id, kind, about FROM outbox WHERE {_UNADDRESSED}").fetchall():
                if not _address(c, row["id"], row["kind"], json.loads(row["about"])):
                    c.execute("DELETE FROM outbox WHERE id = ?", (row["id"],))
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
            "SELECT min(next_at) FROM target WHERE EXISTS"
            " (SELECT 1 FROM delivery WHERE target = digest AND state = 'pending' AND carrier IS NULL)"
        )[0][0]
        return None if due is None else float(due)

    def pending(self) -> int:
        """How many notifications wait to be delivered; those that quiet hours hold are none."""
        return int(self._database.read(f"SELECT count(*) FROM outbox WHERE state = 'pending' AND NOT {ONLY_HELD}")[0][0])

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
        self._database.write("undelivered", lambda c: _note_failure(c, target, error, next_at))

    def answered(self, target: str) -> None:
        """A target that had failed is well."""
        self._database.write("target-answered", lambda c: c.execute(
            "UPDATE target SET failures = 0, last_error = NULL WHERE digest = ?", (target,),
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
            _note_failure(c, target, error, next_at)
            also = "AND (message = ? OR message IN (SELECT id FROM outbox WHERE CAST(strftime('%s', created) AS INTEGER) < ?))"
            return _end_all(c, target, "abandoned", also, (message, older_than), error)

        return self._database.write("give-up", give_up)

    def announce(self, occasion: str, notice: Notice) -> bool:
        """A notification that belongs to no job, once for each `occasion`; says whether it is new."""

        def add(c: sqlite3.Connection) -> bool:
            name = f"announced:{occasion}"
            if not c.execute("INSERT OR IGNORE INTO control (name, value, at) VALUES (?, '', ?)", (name, now())).rowcount:
                return False
            enter_message(c, "", notice)
            return True

        return self._database.write("announce", add)

    def changed(self, condition: str, state: str, notice: Notice | None) -> bool:
        """A condition is in this state now; says whether it was in another one, and enters the notification of that where there is one.

        The state is remembered over restarts; "" is that of a condition of which nothing was said.
        """
        name = f"condition:{condition}"

        def change(c: sqlite3.Connection) -> bool:
            row = c.execute("SELECT value FROM control WHERE name = ?", (name,)).fetchone()
            if (row[0] if row else "") == state:
                return False
            c.execute("INSERT OR REPLACE INTO control (name, value, at) VALUES (?, ?, ?)", (name, state, now()))
            if notice is not None:
                enter_message(c, "", notice)
            return True

        return self._database.write("condition-changed", change)

    def state_of(self, condition: str) -> str:
        """What `changed` was told of a condition last; "" where nothing was."""
        rows = self._database.read("SELECT value FROM control WHERE name = ?", f"condition:{condition}")
        return str(rows[0][0]) if rows else ""

    def hasten(self) -> None:
        """Every target may be tried now."""
        self._database.write("hasten-messages", lambda c: c.execute("UPDATE target SET next_at = 0"))


def enter_message(c: sqlite3.Connection, job: str, notice: Notice) -> None:
    """Inside a transaction: a message for all targets that want it; one without any target waits for the next `Outbox.adopt`."""
    about = json.dumps(dict(notice.about), ensure_ascii=False) if notice.about else "{}"
    message = c.execute(
        "INSERT INTO outbox (job, kind, title, body, about, created) VALUES (?,?,?,?,?,?)",
        (job, notice.kind, notice.title, notice.body, about, now()),
    ).lastrowid
    assert message is not None
    if not _address(c, message, notice.kind, notice.about) and c.execute("SELECT 1 FROM target LIMIT 1").fetchone():
        c.execute("DELETE FROM outbox WHERE id = ?", (message,))


def wants(target: str, events: Collection[str], run: str | None) -> bool:
    """Whether a target (`Target.wants`) is told of something. What concerns no run is told whatever the target's runs are."""
    wanted = json.loads(target)
    on, runs = wanted.get("on"), wanted.get("runs")
    return (on is None or not set(on).isdisjoint(events)) and (
        not runs or run is None or any(fnmatchcase(run, pattern) for pattern in runs)
    )


def _address(c: sqlite3.Connection, message: int, kind: str, about: Json) -> bool:
    """Let all who want a message get it; says whether somebody does."""
    events, run = about.get("events") or (kind,), about.get("run")
    those = [(message, row["digest"]) for row in c.execute("SELECT digest, wants FROM target") if wants(row["wants"], events, run)]
    c.executemany("INSERT INTO delivery (message, target) VALUES (?, ?)", those)
    return bool(those)


def _due(row: sqlite3.Row) -> Due:
    message = Message(row["id"], row["job"], row["kind"], row["title"], row["body"], row["created"], json.loads(row["about"]))
    return Due(row["digest"], message, row["attempts"], row["failures"])


def _claim(c: sqlite3.Connection, message: int, target: str) -> None:
    c.execute("UPDATE delivery SET attempts = attempts + 1 WHERE message = ? AND target = ?", (message, target))


def _note_failure(c: sqlite3.Connection, target: str, error: str, next_at: float) -> None:
    c.execute("UPDATE target SET failures = failures + 1, last_error = ?, next_at = ? WHERE digest = ?", (error[:500], next_at, target))


def _end(c: sqlite3.Connection, message: int, target: str, state: str, error: str | None = None) -> None:
    """A delivery has ended, with those that it stands for; and with the last one of a message the message."""
    c.execute(
        "UPDATE delivery SET state = ?, ended = ?, error = ? WHERE message = ? AND target = ? AND state = 'pending'",
        (state, now(), error and error[:500], message, target),
    )
    conclude(c, message)
    for row in c.execute(
        "SELECT message FROM delivery WHERE target = ? AND carrier = ? AND state = 'pending'", (target, message)
    ).fetchall():
        _end(c, row[0], target, state, error)


def conclude(c: sqlite3.Connection, message: int) -> None:
    """Give a message the state that follows from its deliveries."""
    left = {str(row[0]) for row in c.execute("SELECT DISTINCT state FROM delivery WHERE message = ?", (message,))}
    good = "delivered" in left and "abandoned" not in left
    state = "pending" if "pending" in left else "delivered" if good else "abandoned"
    c.execute("UPDATE outbox SET state = ?, delivered = ? WHERE id = ?", (state, now() if state == "delivered" else None, message))


def _end_all(
    c: sqlite3.Connection, target: str, state: str, also: str = "", values: tuple[object, ...] = (), error: str | None = None
) -> int:
    """End what waits for a target; gives how many those were."""
    rows = c.execute(f"SELECT message FROM delivery WHERE target = ? AND state = 'pending' {also}", (target, *values)).fetchall()
    for row in rows:
        _end(c, row[0], target, state, error)
    return len(rows)
