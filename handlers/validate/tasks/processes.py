"""A process of a task: what it prints is read while it runs, within limits of time and bytes, and all that it began ends with it.

Used by `command` and `harness`. Its standard error is the attempt's log.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from daemon.contract.faults.advice import quoted
from daemon.contract.parent import end_with_parent
from handlers.validate.tasks.answers import Unanswered

MOST_BYTES = 64 << 20
"""Of what it prints on standard output, or of one line of it."""
POLL_SECONDS = 0.2
_LAST_BYTES = 4096
"""Of its standard error, in which its last line is looked for."""
_STDERR = 2


class TaskProcess:
    """One process, in a group of its own within the attempt's session; killed at the end of its `with` block."""

    def __init__(self, command: Sequence[str], folder: Path, seconds: float, safe_point: Callable[[], None]) -> None:
        """Start it in `folder`. `safe_point` is called all the time, and may raise to end it. Raises Unanswered."""
        self._safe_point, self._seconds, self._buffer = safe_point, seconds, bytearray()
        self._deadline = time.monotonic() + seconds
        self._log_size = os.fstat(_STDERR).st_size
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, process_group=0,
                preexec_fn=end_with_parent,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise Unanswered(f"it can't be started: {getattr(error, 'strerror', None) or error}") from None

    def send(self, text: bytes, *, close: bool = False) -> None:
        """Write to its standard input, without waiting for a process that reads nothing."""
        threading.Thread(target=self._write, args=(text, close), daemon=True).start()

    def _write(self, text: bytes, close: bool) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(text)
            self._process.stdin.flush()
            if close:
                self._process.stdin.close()

    def line(self) -> bytes | None:
        """The next line that it prints; None at its end. Raises Unanswered."""
        while b"\n" not in self._buffer:
            if not self._read():
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return bytes(line)

    def everything(self) -> bytes:
        """All that it prints, once it has ended. Raises Unanswered, also where it ended with another exit code than 0."""
        while self._read():
            pass
        self.end()
        return bytes(self._buffer)

    def end(self) -> None:
        """Wait for its end. Raises Unanswered where that is not exit code 0."""
        while not self._has_ended():
            self._check_time()
            time.sleep(POLL_SECONDS / 10)
        self._end_all()
        if code := self._process.returncode:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            last = self._last_line()
            raise Unanswered(
                f"it ended with {how}; the last line of its standard error is {quoted(last)}" if last else f"it ended with {how}"
            )

    def _last_line(self) -> str:
        """Give the last line of its standard error, which is the attempt's log; "" where that is no file, or it wrote nothing."""
        if not stat.S_ISREG(os.fstat(_STDERR).st_mode):
            return ""
        with open(f"/proc/self/fd/{_STDERR}", "rb") as log:
            log.seek(max(self._log_size, os.fstat(_STDERR).st_size - _LAST_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def _read(self) -> bool:
        """Take what it has printed; False at the end."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            self._check_time()
            ended = self._has_ended()  # what it left behind may hold its output open, and is not waited for
            if select.select([descriptor], [], [], 0 if ended else POLL_SECONDS)[0]:
                break
            if ended:
                return False
        block = os.read(descriptor, 1 << 20)
        self._buffer += block
        if len(self._buffer) > MOST_BYTES:
            raise Unanswered(f"it printed more than {MOST_BYTES >> 20} MiB on standard output")
        return bool(block)

    def _has_ended(self) -> bool:
        """Tell whether it has; it is not waited for, so that its number is no other process's yet."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) if self._process.returncode is None else True
        return ended is not None

    def _end_all(self) -> None:
        """End it, and what it began and left behind in its group."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):  # another user's, after sudo
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _check_time(self) -> None:
        self._safe_point()
        if time.monotonic() > self._deadline:
            remedy = "raise limit_seconds of the task, or give it fewer items"
            raise Unanswered(f"it did not end within {self._seconds:g} s, and was ended", remedy)

    def __enter__(self) -> TaskProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._end_all()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
