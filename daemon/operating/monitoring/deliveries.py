"""Where exports lie besides their own folder: how each delivery of an export stands, as the journal has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from sqlite3 import Connection

from daemon.contract.delivering.orders import Progress
from daemon.contract.light import dataclass
from daemon.journal.shipment_rows import ShipmentRow, shipments_of


@dataclass(frozen=True)
class DeliveryStatus:
    """A delivery of an export to a target of `[[deliver]]`."""

    target: str
    """Name of the target."""
    state: str
    """`waiting`, `running`, `delivered`, `failed` (until you do something) or `dropped`."""
    variants: tuple[str, ...]
    """The variants that are carried; none: all that are published."""
    version: str | None
    """The far end's name of what lies there, which never means anything else; null if nothing lies there."""
    place: str | None
    """Where it lies."""
    moved: bool
    """Whether the name that people follow there stands for it."""
    why_not_moved: str
    """Why it does not; "" if it does, or nothing lies there."""
    usage: str
    """A line of shell or code that fetches or asks it; "" if there is none."""
    sent: int
    """Bytes that were sent, while it runs by the attempt that runs."""
    fraction: float | None
    """While it runs, how far it is in what it does; else null, as where that is not known."""
    doing: str | None
    """What it does while it runs, in a word or two."""
    by_hand: bool
    """Whether `ckptd deliver` asked for it."""
    attempts: int
    error: str | None
    """What failed at the last attempt, or why it was dropped, as a sentence; null if it lies there."""
    retry_at: str | None
    """When it is tried again; ISO 8601 in UTC; null if it does not wait for that."""
    started: str | None
    ended: str | None


def looked_up(connection: Connection, carried: Sequence[Progress]) -> Callable[[str], tuple[DeliveryStatus, ...]]:
    """Return what looks up the deliveries of a job; where there are none at all, without asking for each.

    `carried`: how far those are that run.
    """
    if connection.execute("SELECT 1 FROM shipment LIMIT 1").fetchone() is None:
        return lambda job: ()
    return lambda job: tuple(_status(row, carried) for row in shipments_of(connection, job))


def _status(row: ShipmentRow, carried: Sequence[Progress]) -> DeliveryStatus:
    attempt = (row.job, row.target, row.attempts) if row.state == "running" else None
    now = next((said for said in carried if (said.job, said.target, said.attempt) == attempt), None)
    receipt, lies_there = row.receipt, row.state == "delivered"
    return DeliveryStatus(
        row.target, row.state, row.variants, receipt.version if receipt else None, receipt.place if receipt else None,
        bool(receipt and receipt.moved), receipt.why_not_moved if receipt else "", receipt.usage if receipt else "",
        now.bytes if now else receipt.sent if receipt else 0, now.fraction if now else None, now.message if now else None,
        row.by_hand, row.attempts, None if lies_there else row.fault.sentence() if row.fault else row.reason, retry_at(row), row.started,
        row.ended,
    )  # fmt: skip


def retry_at(row: ShipmentRow) -> str | None:
    """When a delivery is tried again, in ISO 8601 and UTC; None where it does not wait for that."""
    return datetime.fromtimestamp(row.retry_at, UTC).isoformat(timespec="seconds") if row.retry_at and row.state == "waiting" else None
