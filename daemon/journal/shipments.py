"""The journal's deliveries: entered with the end of a job or by hand, claimed, noted, ended, dropped.

A part of `daemon.journal.journal.Journal`; each method is one transaction. Called by `daemon.delivering`, and by `ckptd deliver`; `Jobs`
enters those of a job that ends. A delivery is known by its row's `id`, an attempt at it by its number too: what a process says that was
begun by an earlier attempt changes nothing any more.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

from daemon.contract.delivering.orders import Receipt
from daemon.contract.faults.errors import Fault
from daemon.contract.light import dataclass
from daemon.contract.values import Json
from daemon.journal.file.database import Database
from daemon.journal.outbox import enter_message
from daemon.journal.overview import REBUILT
from daemon.journal.rows import Notice, now
from daemon.journal.shipment_rows import IN_USE, SELECT, NewShipment, ShipmentRow, shipment_of

ADOPTED = "deliver-targets"
"""Row of the table `control`: JSON with the targets of the configuration, each with the time from when on what ends is for it."""
CAUGHT_UP = "deliver-rebuilt"
"""The same: the value of REBUILT when everything that was lost then was entered again."""
_DUE = "s.state = 'waiting' AND s.target = ?1 AND (s.retry_at IS NULL OR s.retry_at <= ?2 OR s.retry_at - ?2 > s.retry_delay)"
"""A wall clock that was set back by more than the pause does not hold anything up."""
_AFRESH = "failures = 0, failing_since = NULL, retry_at = NULL, retry_delay = NULL, fault = NULL, terms = NULL, reason = NULL"
_MINE = "id = ? AND attempts = ? AND state = 'running'"


@dataclass(frozen=True)
class Destination:
    """A target of the configuration, as the journal knows it."""

    name: str
    terms: str
    """Keyed digest of its settings: what failed for good is tried again when they change."""


class Shipments:
    """Transactions on the table `shipment`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def enter(self, job: str, shipments: Sequence[NewShipment]) -> bool:
        """Deliver the export of an ended job, though it may have been delivered before; False where the job has no export.

        A delivery that runs goes on: with `by_hand` nothing is added to it.
        """

        def enter(c: sqlite3.Connection) -> bool:
            if not c.execute("SELECT 1 FROM job WHERE id = ? AND state IN ('succeeded', 'partial')", (job,)).fetchone():
                return False
            enter_shipments(c, job, shipments)
            return True

        return self._database.write("enter-shipments", enter)

    def of(self, job: str) -> list[ShipmentRow]:
        """The deliveries of a job, by their targets' names."""
        return [shipment_of(row) for row in self._database.read(f"{SELECT} WHERE s.job = ? ORDER BY s.target", job)]

    def get(self, shipment: int) -> ShipmentRow | None:
        """One delivery; None where its job was forgotten."""
        rows = self._database.read(f"{SELECT} WHERE s.id = ?", shipment)
        return shipment_of(rows[0]) if rows else None

    def due(self, target: str, clock: float) -> ShipmentRow | None:
        """What is carried to a target next: first what a person asked for, then what was entered first, and of its run the oldest step."""
        first = self._first(target, clock, "s.by_hand DESC, s.entered, s.id", "1")
        if first is None or first.by_hand:
            return first
        return self._first(target, clock, "j.step, s.entered, s.id", "j.root = ?3 AND j.run = ?4", first.root, first.run)

    def _first(self, target: str, clock: float, order: str, where: str, *values: str) -> ShipmentRow | None:
        rows = self._database.read(f"{SELECT} WHERE {_DUE} AND {where} ORDER BY {order} LIMIT 1", target, clock, *values)
        return shipment_of(rows[0]) if rows else None

    def next_due(self) -> float | None:
        """When the next delivery's time comes, 0.0 where it has come; None where none waits."""
        (row,) = self._database.read("SELECT min(COALESCE(retry_at, 0.0)) FROM shipment WHERE state = 'waiting'")
        return None if row[0] is None else float(row[0])

    def running(self) -> list[ShipmentRow]:
        """Deliveries that were begun and have not ended."""
        return [shipment_of(row) for row in self._database.read(f"{SELECT} WHERE s.state = 'running' ORDER BY s.id")]

    def fails_already(self, target: str, code: str) -> bool:
        """Whether something else failed for good at a target with this code."""
        query = "SELECT 1 FROM shipment WHERE state = 'failed' AND target = ? AND json_extract(fault, '$.code') = ? LIMIT 1"
        return bool(self._database.read(query, target, str(code)))

    def standing(self) -> dict[str, dict[str, tuple[int, str, int]]]:
        """Target → state → how many deliveries there are, when the oldest was entered, and the bytes that were sent for them."""
        standing: dict[str, dict[str, tuple[int, str, int]]] = {}
        for target, state, count, oldest, sent in self._database.read(
            "SELECT target, state, count(*), min(entered), COALESCE(sum(json_extract(receipt, '$.sent')), 0) FROM shipment"
            " GROUP BY target, state"
        ):
            standing.setdefault(target, {})[state] = count, oldest, sent
        return standing

    def exports_in_use(self) -> set[str]:
        """The jobs whose exports still are to be carried somewhere."""
        return {str(row[0]) for row in self._database.read(IN_USE)}

    def claim(self, shipment: ShipmentRow) -> int | None:
        """waiting → running, with the attempt counted before there is a process; gives its number, None where it waits no more."""

        def claim(c: sqlite3.Connection) -> int | None:
            row = c.execute(
                "UPDATE shipment SET state = 'running', attempts = attempts + 1, started = ?, ended = NULL, retry_at = NULL, again = 0"
                " WHERE id = ? AND state = 'waiting' RETURNING attempts", (now(), shipment.id),
            ).fetchone()  # fmt: skip
            return int(row[0]) if row else None

        return self._database.write("claim-shipment", claim)

    def note(self, shipment: int, attempt: int, notes: Mapping[str, Json | None]) -> None:
        """Keep what an attempt noted, for those after it; None takes a note away."""

        def note(c: sqlite3.Connection) -> None:
            row = c.execute(f"SELECT resume FROM shipment WHERE {_MINE}", (shipment, attempt)).fetchone()
            if row is None:
                return
            known = {**json.loads(row[0]), **notes}
            text = json.dumps({name: value for name, value in known.items() if value is not None}, ensure_ascii=False)
            c.execute("UPDATE shipment SET resume = ? WHERE id = ?", (text, shipment))

        self._database.write("note-shipment", note)

    def delivered(self, shipment: int, attempt: int, receipt: Receipt, notice: Notice | None = None) -> bool:
        """running → delivered, and the notification of it into the outbox; waiting where the export was made anew meanwhile.

        False, and nothing is recorded, where the attempt is not the present one any more.
        """
        return self._end(
            "delivered", shipment, attempt, "state = CASE again WHEN 1 THEN 'waiting' ELSE 'delivered' END, receipt = ?, resume = '{}', "
            + _AFRESH, (receipt.model_dump_json(),), notice,
        )  # fmt: skip

    def failed(self, shipment: int, attempt: int, fault: Fault, terms: str, notice: Notice | None = None) -> bool:
        """running → failed for good, until a person asks for it or the target's settings are others than `terms`; else as `delivered`."""
        return self._end(
            "failed", shipment, attempt, "state = CASE again WHEN 1 THEN 'waiting' ELSE 'failed' END, failures = failures + 1, fault = ?,"
            " terms = ?", (fault.model_dump_json(), terms), notice,
        )  # fmt: skip

    def retry(self, shipment: int, attempt: int, fault: Fault, clock: float, delay: float) -> bool:
        """running → waiting until `clock` + `delay`, in seconds since the epoch; False as `delivered`."""
        return self._end(
            "retry", shipment, attempt, "state = 'waiting', failures = failures + 1, failing_since = COALESCE(failing_since, ?),"
            " retry_at = ?, retry_delay = ?, fault = ?", (clock, clock + delay, delay, fault.model_dump_json()),
        )  # fmt: skip

    def interrupted(self, shipment: int, attempt: int) -> bool:
        """running → waiting, since the daemon stops: that is no failure. False as `delivered`."""
        return self._end("interrupted", shipment, attempt, "state = 'waiting'", ())

    def _end(self, name: str, shipment: int, attempt: int, changes: str, values: tuple[object, ...], notice: Notice | None = None) -> bool:
        def end(c: sqlite3.Connection) -> bool:
            row = c.execute(
                f"UPDATE shipment SET {changes}, ended = ? WHERE {_MINE} RETURNING job", (*values, now(), shipment, attempt)
            ).fetchone()
            if row is None:
                return False
            if notice:
                enter_message(c, row[0], notice)
            return True

        return self._database.write(f"shipment-{name}", end)

    def refuse(self, shipment: int, fault: Fault, terms: str, notice: Notice | None = None) -> None:
        """waiting → failed without an attempt: there is nothing to carry, or nothing to carry it with."""

        def refuse(c: sqlite3.Connection) -> None:
            row = c.execute(
                "UPDATE shipment SET state = 'failed', fault = ?, terms = ?, ended = ? WHERE id = ? AND state = 'waiting' RETURNING job",
                (fault.model_dump_json(), terms, now(), shipment),
            ).fetchone()
            if row and notice:
                enter_message(c, row[0], notice)

        self._database.write("refuse-shipment", refuse)

    def drop(self, shipment: int, reason: str) -> None:
        """Nobody wants what waits, runs or failed any more."""
        self._database.write("drop-shipment", lambda c: _drop(c, "id = ?", (shipment,), reason))

    def adopt(self, destinations: Sequence[Destination]) -> list[str]:
        """From now on exports are carried to these. Gives the targets that left, of which everything that waits or failed is dropped.

        What failed for good is tried again where its target's settings have changed, and nothing that ended before is carried to a target
        that is new.
        """

        def adopt(c: sqlite3.Connection) -> list[str]:
            row = c.execute("SELECT value FROM control WHERE name = ?", (ADOPTED,)).fetchone()
            before, there = json.loads(row[0]) if row else {}, {destination.name for destination in destinations}
            known = set(before) | {row[0] for row in c.execute("SELECT DISTINCT target FROM shipment WHERE state <> 'dropped'")}
            left = sorted(name for name in known - there if _drop(c, "target = ?", (name,), "its target left the configuration"))
            for destination in destinations:
                c.execute(
                    f"UPDATE shipment SET state = 'waiting', {_AFRESH} WHERE state = 'failed' AND target = ? AND terms <> ?",
                    (destination.name, destination.terms),
                )
            since = {destination.name: before.get(destination.name, now()) for destination in destinations}
            if since != before:
                c.execute("INSERT OR REPLACE INTO control (name, value, at) VALUES (?, ?, ?)", (ADOPTED, json.dumps(since), now()))
            return left

        return self._database.write("adopt-destinations", adopt)

    def unentered(self) -> list[tuple[str, str]]:
        """Jobs and targets that nothing was decided of, though the job ended while the target was there.

        That happens to a journal that is rebuilt, which loses what was entered after its backup; nothing after `all_entered`.
        """
        names = (ADOPTED, REBUILT, CAUGHT_UP)
        control = {row[0]: row[1] for row in self._database.read("SELECT name, value FROM control WHERE name IN (?, ?, ?)", *names)}
        if REBUILT not in control or control.get(CAUGHT_UP) == control[REBUILT]:
            return []
        query = (
            "SELECT id, ? FROM job WHERE state IN ('succeeded', 'partial') AND ended >= ?"
            " AND NOT EXISTS (SELECT 1 FROM shipment WHERE job = id AND shipment.target = ?) ORDER BY ended, id"
        )
        since = json.loads(control.get(ADOPTED, "{}"))
        return [(row[0], row[1]) for name in since for row in self._database.read(query, name, since[name], name)]

    def all_entered(self) -> None:
        """Everything is entered that the last rebuilding of the journal had lost."""
        self._database.write("shipments-entered", lambda c: c.execute(
            "INSERT OR REPLACE INTO control (name, value, at) SELECT ?, value, ? FROM control WHERE name = ?", (CAUGHT_UP, now(), REBUILT)
        ))  # fmt: skip

    def recover(self, clock: float, delay: float) -> list[ShipmentRow]:
        """running → waiting, of a daemon that died: the first two times at once, then after `delay`, as what runs may be what kills it."""
        there = self.running()

        def recover(c: sqlite3.Connection) -> None:
            c.execute(
                "UPDATE shipment SET state = 'waiting', failures = failures + 1, failing_since = COALESCE(failing_since, :clock),"
                " retry_at = CASE WHEN failures >= 2 THEN :clock + :delay END, retry_delay = :delay WHERE state = 'running'",
                {"clock": clock, "delay": delay},
            )

        if there:
            self._database.write("recover-shipments", recover)
        return there

    def hasten(self) -> None:
        """Whatever waits for a time is due now."""
        self._database.write("hasten-shipments", lambda c: c.execute("UPDATE shipment SET retry_at = NULL WHERE state = 'waiting'"))


def enter_shipments(c: sqlite3.Connection, job: str, shipments: Sequence[NewShipment]) -> None:
    """Inside a transaction: the export of an ended job is to be carried to these targets, or, where it was before, again.

    What runs meanwhile carries what was there before: it is done once more, unless a person asks for it, who sees that it runs.
    """
    c.executemany(
        "INSERT INTO shipment (job, target, variants, move, by_hand, entered) VALUES (?,?,?,?,?,?)"
        " ON CONFLICT (job, target) DO UPDATE SET variants = excluded.variants, move = excluded.move, entered = excluded.entered,"
        " by_hand = excluded.by_hand, again = (state = 'running' AND NOT excluded.by_hand),"
        f" state = CASE state WHEN 'running' THEN state ELSE 'waiting' END, {_AFRESH}",
        [(job, new.target, json.dumps(new.variants), new.move, new.by_hand, now()) for new in shipments],
    )


def _drop(c: sqlite3.Connection, where: str, values: tuple[object, ...], reason: str) -> int:
    return c.execute(
        f"UPDATE shipment SET state = 'dropped', reason = ?, ended = ? WHERE {where} AND state IN ('waiting', 'running', 'failed')",
        (reason, now(), *values),
    ).rowcount
