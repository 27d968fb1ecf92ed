"""`python -m daemon.toolchains.unattended ORDER`: installs one toolchain for stages that wait for it, as a process of its own.

Started by `daemon.running.sources.installing` with a JSON order; writes what it is doing now, and in the end how it ended, into files that
the order names. It ends in order, and what it runs with it, when it is told to or when its parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

import psutil

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import CkptdError, Fault, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.parent import end_with_parent
from daemon.toolchains.install import install
from daemon.toolchains.order import Ended, Order
from daemon.toolchains.registry import Toolchains, definitions


def main(text: str) -> None:
    """Follow the order."""
    order = Order.model_validate_json(text)
    end_with_parent(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _told_to_end)
    _stand_back(order)

    def say(line: str) -> None:
        write_atomic(order.doing, line, durable=False)

    operation, fault = f"install the toolchain {order.name}", None
    try:
        install(Toolchains(order.state, definitions(order.definitions)), order.name, say, reserve=order.reserve)
    except CkptdError as error:
        fault = error.fault
    except OSError as error:
        fault = from_oserror(error, operation).fault
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        fault = Fault(code=FaultCode.UNEXPECTED, operation=operation, cause=cause, remedy=f"run `ckptd toolchain install {order.name}`")
    write_atomic(order.ended, Ended(fault=fault).model_dump_json())


def _told_to_end(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _stand_back(order: Order) -> None:
    """A training comes first, as for every child."""
    with contextlib.suppress(OSError):
        os.nice(max(0, order.nice - os.nice(0)))
    if order.idle:
        with contextlib.suppress(OSError, psutil.Error):
            psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as stream:
        stream.write(str(order.oom_score_adj))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1])
