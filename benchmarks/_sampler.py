"""Where the processor time of a process goes, noted by the process itself: its Python stack, after every few milliseconds of that time.

Imported at the start of every process of an export by a `sitecustomize.py` that `where.py` writes. Each process has a file, PID, with its
command, and then a line for each look: its name, the seconds since the look before, and the functions on the stack, the outermost first.
Time in a library's own code is that of the Python function that called it. What is killed has its lines all the same.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from pathlib import Path
from types import FrameType

EVERY_SECONDS = 0.004


class Sampler:
    """Writes into a folder; a process that is forked goes on in a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder, self._before = folder, 0.0
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(signal.setitimer, signal.ITIMER_PROF, 0)  # Python takes its handlers back after this
        self._begin()

    def _begin(self) -> None:
        self._path, self._before = os.path.join(self._folder, str(os.getpid())), 0.0
        self._write(f"{os.getppid()}\t{Path('/proc/self/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}\n")
        signal.signal(signal.SIGPROF, self._note)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, EVERY_SECONDS, EVERY_SECONDS)

    def _write(self, line: str) -> None:
        """Append a line. The file is not kept open: a forked worker closes all that it did not open."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode(errors="replace"))
        os.close(file)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now, functions = time.process_time(), []
        while frame is not None:
            functions.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
            frame = frame.f_back
        name = Path("/proc/self/comm").read_text("utf-8").strip()
        self._write(f"{name}\t{now - self._before:.6f}\t{';'.join(reversed(functions))}\n")
        self._before = time.process_time()
