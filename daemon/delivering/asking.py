"""Asks a target something while a person waits: whether it can be reached, what lies there, to take something away."""

from __future__ import annotations

import select
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import Action, End
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.delivering.endpoint import Endpoint
from daemon.delivering.orders import environment_of, question, unreadable_secret
from daemon.delivering.process import DeliveryProcess

LOOK_SECONDS = 20.0
"""For a look at a far end: one that answers at all does so in a few of them."""
REMOVE_SECONDS = 600.0
"""For a list of thousands of versions, or to take their files away."""
_TICK = 0.2


def ask(target: Endpoint, action: Action, seconds: float, passed: Iterable[str] = (), **rest: Any) -> End:
    """What a process answers to this order within so many seconds; a fault of its own where it gives no answer.

    `passed`: variables that the process gets besides; `rest`: further fields of the order. The thread must live until this returns.
    """
    try:
        order = question(target, action, **rest)
    except ValueError as error:
        return End(fault=unreadable_secret(target, error), permanent=True)
    with tempfile.TemporaryDirectory(prefix="ckptd-deliver-") as folder:
        process = DeliveryProcess(order, environment_of(target, passed), Path(folder, "log"))
        try:
            until = time.monotonic() + seconds
            while not process.has_ended():
                if time.monotonic() > until:
                    return End(fault=_silent(target, seconds))
                select.select(process.handles, (), (), _TICK)
                process.read()
            return process.conclude(lambda said: None)
        finally:
            process.kill()
            process.has_ended()


def _silent(target: Endpoint, seconds: float) -> Fault:
    return Fault(
        code=FaultCode.DELIVERY_FAR_END, operation=f"ask {target.name}", cause=f"it has not answered for {seconds:.0f} s",
        remedy="look at the service and at the network between here and there",
    )  # fmt: skip
