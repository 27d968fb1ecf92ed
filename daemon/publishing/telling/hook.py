"""A command that is told: it gets the message as JSON on standard input. Used by the sending process.

Nothing that it starts stays: when it has ended, or its time is over, its process group is ended, and what left that is found by its
environment, or by becoming a child of this process (`adopt_orphans`). A child without that environment may be another command's: it is
ended when no command runs any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from daemon.contract.parent import end_with_parent
from daemon.publishing.telling.outcome import Outcome

MARK = "CKPTD_MESSAGE"
"""The variable with the message's id."""
NOT_THIS = 65
"""Exit code by which a command says that the message, not the moment, is the trouble (EX_DATAERR of sysexits.h).

It counts as an answer 4xx of a webhook."""
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
_ENVIRONMENT = re.compile(r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR")
_SUBREAPER = 36
_LIBC = ctypes.CDLL(None)
_ROUNDS = 20
_open: set[str] = set()
"""Messages whose commands run."""


def adopt_orphans() -> None:
    """Let what commands leave behind become children of this process."""
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)


def run(
    command: Sequence[str], limit: float, id: str, event: str, text: str, more: Mapping[str, str] | None = None, said: IO[Any] | None = None
) -> Outcome:
    """Run a command with a message, at most `limit` seconds, and end whatever it started. `more`: variables of its environment; `said`: the
    file for what it prints, which is lost without."""
    _open.add(id)
    try:
        return _run(command, limit, id, event, text, more or {}, subprocess.DEVNULL if said is None else said)
    finally:
        _open.discard(id)


def environment() -> dict[str, str]:
    """What a command inherits."""
    return {name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)}


def too_long(limit: float) -> str:
    """What is said of a command whose time was over."""
    return f"the command did not end within {limit:g} s, and was ended"


def _run(command: Sequence[str], limit: float, id: str, event: str, text: str, more: Mapping[str, str], said: IO[Any] | int) -> Outcome:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=said, stderr=subprocess.DEVNULL, cwd="/", process_group=0,
            env={**environment(), **more, MARK: id, "CKPTD_EVENT": event}, preexec_fn=end_with_parent,
        )  # fmt: skip
    except OSError as error:
        return Outcome(f"the command could not be started: {error.strerror}")
    try:
        process.communicate(text.encode(), timeout=limit)
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        return Outcome(too_long(limit))
    finally:
        _end_all(process, id)
    if process.returncode == 0:
        return Outcome(None)
    how = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
    return Outcome(f"the command ended with {how}", rejected=process.returncode == NOT_THIS)


def _end_all(process: subprocess.Popen[bytes], id: str) -> None:
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    _open.discard(id)
    _end_those(lambda: {*_marked(id), *_ownerless()})


def end_all() -> None:
    """End the commands that run, and whatever they started."""
    _end_those(_adopted)


def _end_those(find: Callable[[], Iterable[int]]) -> None:
    for _ in range(_ROUNDS):  # one that was just being forked is seen in the next
        left = list(find())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if not left:
            return
        time.sleep(0.02)


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _marked(id: str) -> Iterator[int]:
    """The processes, but for this one, whose environment names the message."""
    wanted = f"{MARK}={id}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    yield int(name)


def _adopted() -> Iterator[int]:
    """The children of this process that are in another process group: commands, and what their ends left."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            parent, group = map(int, file.read().rpartition(b")")[2].split()[1:3])
            if parent == os.getpid() and group != os.getpgrp():
                yield int(name)


def _ownerless() -> list[int]:
    """The adopted ones where no command runs; what begins after the look is not among them."""
    adopted = list(_adopted())
    return [] if _open else adopted
