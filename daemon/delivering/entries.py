"""What log and people are told of deliveries. Notifications in English, as all are."""

from __future__ import annotations

from daemon.contract import units
from daemon.contract.delivering.orders import Receipt
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.values import Json
from daemon.journal.rows import Notice
from daemon.journal.shipment_rows import ShipmentRow
from daemon.system.logger import Logger

log = Logger("deliver")


def started(shipment: ShipmentRow, attempt: int) -> None:
    """Log that an attempt begins."""
    log.info("delivering", event_id=Event.DELIVERY_STARTED, **_of(shipment), attempt=attempt)


def delivered(shipment: ShipmentRow, receipt: Receipt) -> None:
    """Log what lies at the far end now."""
    log.info(
        "delivered", event_id=Event.DELIVERED, **_of(shipment), version=receipt.version, place=receipt.place, moved=receipt.moved,
        sent=units.size(receipt.sent), there=units.size(receipt.there),
    )  # fmt: skip


def warned(shipment: ShipmentRow, text: str) -> None:
    """Log a warning of a delivery."""
    log.warning(text, event_id=Event.DELIVERY_WARNING, **_of(shipment))


def retried(shipment: ShipmentRow, fault: Fault, attempt: int, retry_in: float) -> None:
    """Log that an attempt failed, and that there is another one."""
    log.warning(
        fault.sentence(), event_id=Event.DELIVERY_RETRIED, **_of(shipment), code=fault.code, attempt=attempt, retry_in=round(retry_in)
    )


def failed(shipment: ShipmentRow, fault: Fault) -> None:
    """Log that a delivery is tried no more."""
    log.error(fault.sentence(), event_id=Event.DELIVERY_FAILED, **_of(shipment), code=fault.code, remedy=again(shipment))


def dropped(shipment: ShipmentRow, reason: str) -> None:
    """Log that a delivery is not wanted any more."""
    log.warning(f"a delivery was dropped: {reason}", event_id=Event.DELIVERY_DROPPED, **_of(shipment))


def left(target: str) -> None:
    """Log that what was still to be delivered to a target is dropped, since it left the configuration."""
    log.warning("what was still to be delivered is dropped: its target is no longer in [[deliver]]", event_id=Event.DELIVERY_DROPPED,
                target=target)  # fmt: skip


def resumed(shipment: ShipmentRow) -> None:
    """Log that a delivery goes on that the last daemon had begun."""
    log.info("a delivery that had begun continues", event_id=Event.DELIVERY_RESUMED, **_of(shipment), notes=len(shipment.resume))


def again(shipment: ShipmentRow) -> str:
    """The command by which a person has a delivery tried again."""
    return f"ckptd deliver {shipment.job} {shipment.target}"


def notice_of_delivered(shipment: ShipmentRow, receipt: Receipt) -> Notice:
    """An export lies where people use it."""
    title = f"{shipment.run} {shipment.step}: delivered to {shipment.target}"
    body = "\n".join(line for line in (f"{receipt.version}: {receipt.place}", receipt.usage, receipt.why_not_moved) if line)
    about = {"version": receipt.version, "place": receipt.place, "moved": receipt.moved, "usage": receipt.usage or None}
    return Notice("delivered", title, body, _about(shipment, **about))


def notice_of_failed(shipment: ShipmentRow, fault: Fault) -> Notice:
    """A delivery needs somebody."""
    title = f"{shipment.run} {shipment.step}: not delivered to {shipment.target}"
    body = f"{fault.sentence()}\nWhen the cause is gone: {again(shipment)}"
    return Notice("delivery_failed", title, body, {**_about(shipment, code=str(fault.code)), "remedy": again(shipment)})


def _of(shipment: ShipmentRow) -> dict[str, object]:
    return {"job": shipment.job, "run": shipment.run, "step": shipment.step, "target": shipment.target}


def _about(shipment: ShipmentRow, **more: object) -> Json:
    """What programs are told of a delivery; `more`: fields of `daemon.publishing.telling.content.Carried`."""
    delivery = {"target": shipment.target, **more}
    return {"run": shipment.run, "step": shipment.step, "job": shipment.job, "delivery": delivery, "target": str(shipment.export)}
