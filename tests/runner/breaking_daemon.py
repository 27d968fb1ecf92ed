"""`python -m tests.runner.breaking_daemon CONFIG`: the toy daemon, in which functions raise where their threads call them.

`BREAK=JSON`: a list of [thread, module, name, error, times, after, early]: where the thread calls that function, it raises the error, so
many times (0: always), from the call `after` on; in the first thread and the journal's once the daemon watches, or (early) also before.
`BREAK_FIRED=FILE`: the number of each entry that has raised is written there, one a line. `BREAK_OVER=FILE`: once this file exists nothing
raises any more. `BREAK_TRACE=FILE`: instead, every function of `daemon` that a thread calls is written there, one a line, in that form
without what follows the name; of the first thread those that its main loop calls. `BREAK_QUICK=1`: attempts take no process.
Notifications arrive at once (`Told`). Pauses are shortened, so that a case takes seconds.
"""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from daemon.config.receivers import Receiver
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.journal.rows import Message
from daemon.operating import service
from daemon.operating.disks import watch
from daemon.publishing.telling import notifier, untold
from daemon.publishing.telling.outcome import Outcome
from daemon.running import runner, starter
from daemon.running.attempts import children
from daemon.running.attempts.executor import Order
from daemon.system.processes import threads
from daemon.watching import watcher
from tests.runner.desk import Fake, FakeExecutor, done

ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError(errno.EIO, "made to fail"),
    "ENOSPC": lambda: OSError(errno.ENOSPC, "made to fail"),
    "MemoryError": lambda: MemoryError(),
    "RuntimeError": lambda: RuntimeError("made to fail"),
    "sqlite3": lambda: sqlite3.OperationalError("made to fail"),
    "CkptdError": lambda: Retryable(FaultCode.JOURNAL_UNAVAILABLE, "try", "it was made to fail", "nothing"),
    "SystemExit": lambda: SystemExit(3),
}
OURS = ("daemon.", "tests.runner.toy_daemon")
MAIN, JOURNAL = "MainThread", "journal"
_serving = threading.Event()
"""Set while the daemon watches: before and after it, the first thread starts and ends the others."""


def kind(name: str) -> str:
    """A thread's name without what differs from run to run."""
    return name.split()[0].split("-")[0]


def trace(file: str) -> None:
    """Append each function of ours the first time that it is called in a thread."""
    seen: set[tuple[str, str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_qualname
        if module.startswith("daemon.") and "<" not in name:
            thread = kind(threading.current_thread().name)
            where = (thread, module, name)
            if where not in seen and (thread != MAIN or _serving.is_set()):
                seen.add(where)
                with open(file, "a") as stream:
                    stream.write(" ".join(where) + "\n")

    threading.setprofile(note)
    sys.setprofile(note)


def break_(number: int, thread: str, module: str, name: str, error: str, times: int, after: int, early: bool) -> None:
    """Let the function raise."""
    *owners, last = name.split(".")
    place: Any = importlib.import_module(module)
    for owner in owners:
        place = getattr(place, owner)
    found = place.__dict__[last]
    left, calls, fired = [times], [0], os.environ.get("BREAK_FIRED")
    over = os.environ.get("BREAK_OVER")

    def fail() -> None:
        mine = kind(threading.current_thread().name) == thread and (thread not in (MAIN, JOURNAL) or early or _serving.is_set())
        if not mine or (times and left[0] <= 0) or (over and os.path.exists(over)):
            return
        calls[0] += 1
        if calls[0] <= after:
            return
        left[0] -= 1
        if fired and left[0] in (times - 1, -1):
            with open(fired, "a") as stream:
                stream.write(f"{number}\n")
        raise ERRORS[error]()

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            fail()
            return function(*arguments, **named)

        return call

    if isinstance(found, property):
        broken: Any = property(around(found.fget))  # type: ignore[arg-type]
    elif isinstance(found, functools.cached_property):
        broken = functools.cached_property(around(found.func))
        broken.__set_name__(place, last)
    elif isinstance(found, staticmethod):
        broken = staticmethod(around(found.__func__))
    elif isinstance(found, classmethod):
        broken = classmethod(around(found.__func__))
    else:
        broken = around(found)
    setattr(place, last, broken)
    for other in list(sys.modules.values()) if not owners else ():
        for key, value in list(vars(other).items()) if getattr(other, "__name__", "").startswith(OURS) else ():
            if value is found:
                setattr(other, key, broken)


def quick(order: Order) -> Fake:
    """An attempt that has done its work when it is first asked about."""
    order.write_job_file()
    if log := os.environ.get("TOY_LOG"):
        with open(log, "a") as stream:
            stream.write(f"{order.context.job} {order.context.stage} {order.context.attempt}\n")
    results: list[StageResult] = []

    def script(context: StageContext) -> StageResult:
        results.append(results[0] if results else done(context))
        return results[0]

    return Fake(order.context, script)


class Told:
    """A message that has arrived at once: `BREAK_TOLD=FILE` gets a line of each, its service and its title."""

    wait_handle = None

    def __init__(self, receiver: Receiver, message: Message) -> None:
        if file := os.environ.get("BREAK_TOLD"):
            with open(file, "a") as stream:
                stream.write(f"{receiver.url.get_secret_value()} {message.title}\n")

    def poll(self) -> Outcome:
        return Outcome(None)

    def end(self) -> None:
        pass


class Quick(FakeExecutor):
    """In the place of the executor of this box."""

    def __init__(self, _command: object) -> None:
        super().__init__(quick)


def hurry() -> None:
    """Shorten every pause that a case would wait for."""
    threads.FIRST_PAUSE, threads.LONGEST_PAUSE, threads.LOOK_SECONDS = 0.02, 0.1, 0.2
    service.UNFORESEEN_SECONDS, service.IDLE_SECONDS, service.SHORT_SECONDS, service.LIVE_SECONDS = 2.0, 0.3, 0.3, 0.1
    runner.NEWS_SECONDS, runner.IDLE_SECONDS, runner.WAIT_SECONDS, starter.WAIT_SECONDS = 0.02, 0.3, 0.5, 0.5  # type: ignore[attr-defined]
    notifier.FIRST_PAUSE, notifier.SAFE_SECONDS, notifier.LOOK_SECONDS, untold.PAUSE = 0.2, 1.0, 0.05, 0.5
    watcher.CHECK_SECONDS = watcher.POLL_SECONDS = 0.5
    children.UNHEARD_SECONDS, children.NO_ANSWER_SECONDS = 1.0, 10.0
    watch.FIRST_PAUSE, watch.LONGEST_PAUSE, watch.AGAIN_SECONDS = 0.2, 0.5, 1.0


def serving(say_watching: Callable[..., None], serve: Callable[[service.Daemon], None]) -> None:
    """Have `_serving` tell from when the daemon has said that it watches until its main loop ends."""

    def say_and_tell(daemon: service.Daemon, *what: Any) -> None:
        say_watching(daemon, *what)
        _serving.set()

    def serve_and_tell(daemon: service.Daemon) -> None:
        try:
            serve(daemon)
        finally:
            _serving.clear()

    service.Daemon._say_watching, service.Daemon._serve = say_and_tell, serve_and_tell  # type: ignore[method-assign]


def main() -> None:
    """See the module."""
    from tests.runner import toy_daemon  # only now: what it imports is complete then

    hurry()
    if file := os.environ.get("BREAK_TRACE"):
        trace(file)
    for number, case in enumerate(json.loads(os.environ.get("BREAK", "[]"))):
        break_(number, *case)
    service.Notifier = functools.partial(notifier.Notifier, begin=Told)  # type: ignore[misc, assignment]
    serving(service.Daemon._say_watching, service.Daemon._serve)
    toy_daemon.main(Path(sys.argv[1]), *([Quick] if os.environ.get("BREAK_QUICK") else []))


if __name__ == "__main__":
    main()
