"""Entry of a delivery's process: `python -m handlers.deliver`, an order on standard input, one line of JSON for each thing that it says.

Libraries that write to standard output can't disturb that: it is moved aside first. The exit code is 0 whatever the last line says, and 65
for an order that this version can't read.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from daemon.contract.delivering.orders import CONTRACT_VERSION, End, Note, Order
from daemon.contract.disk import failpoints
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.errors import CkptdError, Fault, Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes.job_file import ChildLimits
from daemon.contract.records import Record
from daemon.contract.values import Json
from handlers.child import process
from handlers.deliver.target import Resume, Setting
from handlers.deliver.transfer import Transfer

EXIT_BAD_ORDER = 65


def main() -> int:
    """Do what the order says."""
    said, lock = os.fdopen(os.dup(1), "w", encoding="utf-8"), threading.Lock()
    os.dup2(2, 1)
    try:
        order = Order.model_validate_json(sys.stdin.buffer.read())
    except ValueError as error:
        print(f"the order can't be read: {error}", file=sys.stderr)
        return EXIT_BAD_ORDER
    if order.contract != CONTRACT_VERSION:
        print(f"the order is of version {order.contract} and this program of {CONTRACT_VERSION}", file=sys.stderr)
        return EXIT_BAD_ORDER

    def say(record: Record) -> None:
        with lock:
            said.write(record.model_dump_json() + "\n")
            said.flush()

    with tempfile.TemporaryDirectory(dir=order.scratch or None) as scratch:
        end = _obey(order, say, Path(scratch))
    failpoints.point("deliver.before-end")
    say(end)
    failpoints.point("deliver.after-end")
    return 0


def _obey(order: Order, say: Callable[[Record], None], scratch: Path) -> End:
    """How the order ended."""
    try:
        return _done(order, say, scratch)
    except CkptdError as error:
        return End(
            fault=error.fault, permanent=isinstance(error, Permanent), retry_after=error.delay if isinstance(error, Retryable) else None
        )
    except OSError as error:
        ours = from_oserror(error, f"deliver to {order.name}")
        return End(fault=ours.fault, permanent=isinstance(ours, Permanent))
    except Exception as error:
        cause = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        remedy = "report it with the log"
        return End(fault=Fault(code=FaultCode.UNEXPECTED, operation=f"deliver to {order.name}", cause=cause, remedy=remedy))


def _done(order: Order, say: Callable[[Record], None], scratch: Path) -> End:
    module, _, name = order.entry.partition(":")
    known: dict[str, Json] = {name: dict(value) for name, value in order.resume.items()}
    resume = Resume(known, lambda name, value: say(Note(name=name, value=value)))
    run = order.run or (str(manifest_of(Path(order.export)).get("run", "")) if order.export else "")
    try:
        make = getattr(importlib.import_module(module), name)
        target = make(Setting(order.options, order.secret, scratch, resume, order.share, run))
    except ModuleNotFoundError as error:
        raise Permanent(
            FaultCode.DELIVERY_LIBRARY, f"deliver to {order.name}", f"the package {error.name} is not installed",
            f"install what deliveries of the kind {order.kind} need: `pip install 'ckptd[deliver]'`",
        ) from error  # fmt: skip
    transfer = Transfer(order, target, say)
    try:
        match order.action:
            case "deliver":
                return End(receipt=transfer.deliver())
            case "list":
                return End(listed=transfer.listed())
            case "remove":
                transfer.remove()
            case "look":
                transfer.look()
    finally:
        target.close()
    return End()


if __name__ == "__main__":
    process.bind(ChildLimits(parent_pid=os.getppid()))
    sys.exit(main())
