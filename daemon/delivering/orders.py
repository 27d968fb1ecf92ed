"""The order of a delivery's process, and whether the export that it names still lies there."""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import Action, Move, Order
from daemon.contract.disk import away
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.advice import quoted
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.delivering.endpoint import Endpoint
from daemon.journal.shipment_rows import ShipmentRow
from daemon.system.processes.environment import FIXED, for_children

_PROXIES = re.compile("(https?|all|no)_proxy", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """What has become of an export that is to be delivered; all None where it lies there."""

    replaced: str | None = None
    """The job whose export has its place."""
    away: Fault | None = None
    """Its disk, or its output, is not there now."""
    gone: Fault | None = None
    """It was removed."""


def source_of(shipment: ShipmentRow, output: Path) -> Source:
    """Look at the export of a delivery. `output`: the folder that holds all exports, which is never empty unless its disk is away."""
    holder = manifest_of(shipment.export).get("export_id")
    if holder == shipment.job:
        return Source()
    if holder:
        return Source(replaced=str(holder))
    operation = f"deliver to {shipment.target}"
    top = output if output in shipment.export.parents else shipment.export.parent
    if (fault := away.fault_of_whole(top, operation)) is not None:
        return Source(away=fault)
    return Source(gone=Fault(
        code=FaultCode.DELIVERY_SOURCE, operation=operation, cause="the export was removed before it was delivered",
        remedy=f"run `ckptd queue retry {shipment.job}` to make it again, which also delivers it", path=str(shipment.export),
    ))  # fmt: skip


def order_of(target: Endpoint, shipment: ShipmentRow, move: Move, scratch: Path) -> Order:
    """What the process is asked. Raises ValueError where the target's secret can't be read."""
    return question(
        target, "deliver", export=str(shipment.export), job=shipment.job, variants=shipment.variants, move=move,
        resume=dict(shipment.resume), scratch=str(scratch),
    )  # fmt: skip


def question(target: Endpoint, action: Action, **rest: Any) -> Order:
    """What a process is asked of a target; `rest`: the order's fields that are no setting of the target. Raises as `order_of`."""
    return Order(
        kind=target.kind, entry=target.declared.entry, name=target.name, action=action, options=dict(target.options),
        secret=target.secret(), keep=target.keep, bandwidth=int(target.bandwidth), read_back=target.read_back, share=float(target.share),
        **rest,
    )  # fmt: skip


def environment_of(target: Endpoint, passed: Iterable[str]) -> dict[str, str]:
    """The variables of a process; `passed`: names of further ones that it gets of this process's."""
    proxies = [name for name in os.environ if _PROXIES.fullmatch(name)]
    return {**for_children(os.environ, (*passed, *proxies)), **FIXED, **target.secret_variables}


def terms_of(target: Endpoint, key: bytes) -> str:
    """A keyed digest of all by which deliveries to a target may fail, its secrets among it."""
    try:
        secret = target.secret()
    except ValueError as error:
        secret = f"unreadable: {error}"
    settings = [
        target.kind, dict(target.options), secret, dict(target.secret_variables), list(target.variants), target.keep, target.read_back,
        float(target.share),
    ]  # fmt: skip
    return hmac.new(key, json.dumps(settings, sort_keys=True, default=str).encode(), "sha256").hexdigest()


def unreadable_secret(target: Endpoint, error: ValueError) -> Fault:
    """The fault of a secret that can't be read."""
    return Fault(
        code=FaultCode.DELIVERY_REFUSED, operation=f"deliver to {quoted(target.name)}", cause=f"its secret can't be read: {error}",
        remedy="correct secret_file of that target, then reload the configuration",
    )  # fmt: skip
