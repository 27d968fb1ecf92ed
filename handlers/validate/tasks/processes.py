"""A process of a task: what it prints is read while it runs, within limits of time and bytes, and all that it began ends with it.

Used by `command` and `harness`. Its standard error is the attempt's log.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from handlers.validate.tasks.answers import Unanswered

MOST_BYTES = 64 << 20
"""Of what it prints on standard output, or of one line of it."""
POLL_SECONDS = 0.2
_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class TaskProcess:
    """One process, in a group of its own within the attempt's session; killed at the end of its `with` block."""

    def __init__(self, command: Sequence[str], folder: Path, seconds: float, safe_point: Callable[[], None]) -> None:
        """Start it in `folder`. `safe_point` is called all the time, and may raise to end it. Raises Unanswered."""
        self._safe_point, self._seconds, self._buffer = safe_point, seconds, b""
        self._deadline = time.monotonic() + seconds
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, process_group=0,
                preexec_fn=lambda: _LIBC.prctl(_PDEATHSIG, signal.SIGKILL),
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
        return line

    def everything(self) -> bytes:
        """All that it prints, once it has ended. Raises Unanswered, also where it ended with another exit code than 0."""
        while self._read():
            pass
        self.end()
        return self._buffer

    def end(self) -> None:
        """Wait for its end. Raises Unanswered where that is not exit code 0."""
        while (code := self._process.poll()) is None:
            self._check_time()
            time.sleep(POLL_SECONDS / 10)
        if code:
            how = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            raise Unanswered(f"it ended with {how}")

    def _read(self) -> bool:
        """Take what it has printed; False at the end."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while True:
            self._check_time()
            ended = self._process.poll() is not None  # what it left behind may hold its output open, and is not waited for
            if select.select([descriptor], [], [], 0 if ended else POLL_SECONDS)[0]:
                break
            if ended:
                return False
        block = os.read(descriptor, 1 << 20)
        self._buffer += block
        if len(self._buffer) > MOST_BYTES:
            raise Unanswered(f"it printed more than {MOST_BYTES >> 20} MiB on standard output")
        return bool(block)

    def _check_time(self) -> None:
        self._safe_point()
        if time.monotonic() > self._deadline:
            remedy = "raise limit_seconds of the task, or give it fewer items"
            raise Unanswered(f"it did not end within {self._seconds:g} s, and was ended", remedy)

    def __enter__(self) -> TaskProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
