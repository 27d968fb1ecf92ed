"""`python -m tests.runner.breaking_daemon CONFIG`: the toy daemon, in which a function raises where its thread calls it.

`BREAK="THREAD MODULE NAME ERROR TIMES"`: while the thread calls that function, it raises the error, so many times (0: always). The thread
`*` is any. `BREAK_TRACE=FILE`: instead, every function of `daemon` that a thread beside the first one calls is written there, one a line,
in that form without error and times. Pauses of supervised threads are shortened, so that a case takes seconds.
"""

from __future__ import annotations

import errno
import functools
import os
import runpy
import sqlite3
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from daemon.contract.errors import Retryable
from daemon.contract.fault_codes import FaultCode
from daemon.operating import service
from daemon.system import threads

ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError(errno.EIO, "made to fail"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, "made to fail"),
    "MemoryError": lambda: MemoryError(),
    "RuntimeError": lambda: RuntimeError("made to fail"),
    "sqlite3": lambda: sqlite3.OperationalError("made to fail"),
    "CkptdError": lambda: Retryable(FaultCode.JOURNAL_UNAVAILABLE, "try", "it was made to fail", "nothing"),
    "SystemExit": lambda: SystemExit(3),
}


def trace(file: str) -> None:
    """Append each function of ours the first time that it is called in a thread."""
    seen: set[tuple[str, str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_qualname
        if module.startswith("daemon.") and "<" not in name:
            where = (threading.current_thread().name, module, name)
            if where not in seen:
                seen.add(where)
                with open(file, "a") as stream:
                    stream.write(" ".join(where) + "\n")

    threading.setprofile(note)


def break_(thread: str, module: str, name: str, error: str, times: int) -> None:
    """Let the function raise."""
    *owners, last = name.split(".")
    place: Any = sys.modules[module]
    for owner in owners:
        place = getattr(place, owner)
    found = place.__dict__[last]
    left = [times]

    def fail() -> None:
        if thread in ("*", threading.current_thread().name) and (times == 0 or left[0] > 0):
            left[0] -= 1
            raise ERRORS[error]()

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            fail()
            return function(*arguments, **named)

        return call

    if isinstance(found, property):
        broken: Any = property(around(found.fget))  # type: ignore[arg-type]
    elif isinstance(found, staticmethod):
        broken = staticmethod(around(found.__func__))
    elif isinstance(found, classmethod):
        broken = classmethod(around(found.__func__))
    else:
        broken = around(found)
    setattr(place, last, broken)
    for other in list(sys.modules.values()) if not owners else ():
        for key, value in list(vars(other).items()) if getattr(other, "__name__", "").startswith("daemon.") else ():
            if value is found:
                setattr(other, key, broken)


def main() -> None:
    """See the module."""
    threads.FIRST_PAUSE, threads.LONGEST_PAUSE = 0.02, 0.1
    service.UNFORESEEN_SECONDS = 3.0
    if file := os.environ.get("BREAK_TRACE"):
        trace(file)
    if asked := os.environ.get("BREAK"):
        thread, module, name, error, times = asked.split()
        break_(thread, module, name, error, int(times))
    runpy.run_module("tests.runner.toy_daemon", run_name="__main__")


if __name__ == "__main__":
    main()
