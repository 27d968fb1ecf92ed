"""A command that is told: it gets the message as JSON on standard input. Used by the sending process.

Nothing that it starts stays: when it has ended, or its time is over, its process group is ended, and what left that is found by its
environment, or by becoming a child of this process (`adopt_orphans`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

from daemon.publishing.telling.outcome import Outcome

MARK = "CKPTD_MESSAGE"
"""The variable with the message's id."""
NOT_THIS = 65
"""Exit code by which a command says that the message, not the moment, is the trouble (EX_DATAERR of sysexits.h).

It counts as an answer 4xx of a webhook."""
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""
_ENVIRONMENT = re.compile(r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR")
_PDEATHSIG, _SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None)
_ROUNDS = 20


def adopt_orphans() -> None:
    """Let what commands leave behind become children of this process."""
    _LIBC.prctl(_SUBREAPER, 1, 0, 0, 0)


def run(command: Sequence[str], limit: float, id: str, event: str, text: str) -> Outcome:
    """Run a command with a message, at most `limit` seconds, and end whatever it started."""
    environment = {name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", process_group=0,
            env={**environment, MARK: id, "CKPTD_EVENT": event}, preexec_fn=lambda: _LIBC.prctl(_PDEATHSIG, signal.SIGKILL),
        )  # fmt: skip
    except OSError as error:
        return Outcome(f"the command could not be started: {error.strerror}")
    try:
        process.communicate(text.encode(), timeout=limit)
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        return Outcome(f"the command did not end within {limit:g} s, and was ended")
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
    for _ in range(_ROUNDS):  # one that was just being forked is seen in the next
        left = list(_marked(id))
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
