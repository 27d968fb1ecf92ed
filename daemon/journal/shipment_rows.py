"""The journal's deliveries as values, and how they are read for display: through a connection that only reads, while the daemon writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from daemon.contract.delivering.orders import Move, Receipt
from daemon.contract.faults.errors import Fault
from daemon.contract.light import dataclass
from daemon.contract.values import Json
from daemon.journal.legible import object_of
from daemon.journal.rows import Columns, fault_of

OPEN_SHIPMENT = ("waiting", "running")
SHIPMENT_STATES = (*OPEN_SHIPMENT, "delivered", "failed", "dropped")
SELECT = "SELECT s.*, j.root, j.run, j.step, j.target AS export FROM shipment s JOIN job j ON j.id = s.job"
"""The columns of `shipment_of`."""

IN_USE = "SELECT DISTINCT job FROM shipment WHERE state IN ('waiting', 'running')"


@dataclass(frozen=True)
class NewShipment:
    """A delivery that is to be entered."""

    target: str
    """The target's name in the configuration."""
    variants: tuple[str, ...] = ()
    """Those that are carried; none: all that were published."""
    move: Move = "move"
    by_hand: bool = False


@dataclass(frozen=True)
class ShipmentRow:
    """A delivery as the journal holds it. Times are ISO 8601 in UTC, `retry_at` and `failing_since` seconds since the epoch."""

    id: int
    job: str
    target: str
    """The target's name in the configuration."""
    state: str
    """`waiting`, `running`, `delivered`, `failed` or `dropped`."""
    root: str
    run: str
    step: int
    export: Path
    """The export's published folder."""
    variants: tuple[str, ...]
    """Those that are carried; none: all that were published."""
    move: Move
    by_hand: bool
    attempts: int
    """Attempts that were begun."""
    failures: int
    """Attempts in a row that failed."""
    failing_since: float | None
    retry_at: float | None
    retry_delay: float | None
    fault: Fault | None
    """Of the last attempt, if it failed."""
    reason: str | None
    """Why it was dropped."""
    resume: Mapping[str, Json]
    """What earlier attempts noted."""
    receipt: Receipt | None
    """What lies at the far end; None where nothing was delivered."""
    entered: str
    started: str | None
    """When the last attempt was begun."""
    ended: str | None


@dataclass(frozen=True)
class TargetDeliveries:
    """The deliveries to one target."""

    target: str
    """Name of the target."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """State → number of deliveries."""
    failures: int = 0
    """Largest number of failed attempts in a row of what waits."""
    retry_at: float | None = None
    """When the next delivery is tried, in seconds since the epoch; None where none waits for a time."""
    error: str | None = None
    """The last fault of what waits or failed, as a sentence."""
    last: str | None = None
    """When something was delivered last."""


def shipment_of(row: Columns) -> ShipmentRow:
    """A row of SELECT. What can't be read of its JSON is left out."""
    variants = _listed(row["variants"])
    resume = object_of(row["resume"]) or {}
    return ShipmentRow(
        row["id"], row["job"], row["target"], row["state"], row["root"], row["run"], row["step"], Path(row["export"]), variants,
        row["move"], bool(row["by_hand"]), row["attempts"], row["failures"], row["failing_since"], row["retry_at"], row["retry_delay"],
        _fault(row["fault"]), row["reason"], {name: value for name, value in resume.items() if isinstance(value, dict)},
        _receipt(row["receipt"]), row["entered"], row["started"], row["ended"],
    )  # fmt: skip


def shipments_of(connection: sqlite3.Connection, job: str) -> tuple[ShipmentRow, ...]:
    """The deliveries of a job, by their targets' names."""
    return tuple(map(shipment_of, connection.execute(f"{SELECT} WHERE s.job = ? ORDER BY s.target", (job,))))


def exports_in_use(connection: sqlite3.Connection) -> set[str]:
    """The jobs whose exports still are to be carried somewhere."""
    return {str(row[0]) for row in connection.execute(IN_USE)}


def deliveries(connection: sqlite3.Connection) -> tuple[TargetDeliveries, ...]:
    """The deliveries to each target that has any, by the targets' names."""
    counts: dict[str, dict[str, int]] = {}
    for row in connection.execute("SELECT target, state, count(*) FROM shipment GROUP BY state, target"):
        counts.setdefault(row[0], {})[row[1]] = row[2]
    return tuple(_of_target(connection, target, counts[target]) for target in sorted(counts))


def _of_target(connection: sqlite3.Connection, target: str, counts: Mapping[str, int]) -> TargetDeliveries:
    failures, retry_at = connection.execute(
        "SELECT COALESCE(max(failures), 0), min(retry_at) FROM shipment WHERE state = 'waiting' AND target = ?", (target,)
    ).fetchone()
    worst = connection.execute(
        "SELECT fault FROM shipment WHERE state IN ('waiting', 'running', 'failed') AND target = ? AND fault IS NOT NULL"
        " ORDER BY started DESC LIMIT 1", (target,),
    ).fetchone()  # fmt: skip
    (last,) = connection.execute("SELECT max(ended) FROM shipment WHERE state = 'delivered' AND target = ?", (target,)).fetchone()
    fault = _fault(worst[0]) if worst else None
    return TargetDeliveries(target, counts, failures, retry_at, fault.sentence() if fault else None, last)


def _listed(text: str) -> tuple[str, ...]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _fault(text: str | None) -> Fault | None:
    try:
        return fault_of(text)
    except ValueError:
        return None


def _receipt(text: str | None) -> Receipt | None:
    try:
        return Receipt.model_validate_json(text) if text else None
    except ValueError:
        return None
