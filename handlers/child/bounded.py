"""A process that does what somebody else's program or file asks for, with an end to the time and the memory that it may take.

A chat template is a program, and a tokenizer's settings can make a long text of a short one: a model's folder decides what they cost. They
run in a process of their own that the kernel ends at a limit, so that neither the stage nor the machine is taken with it. The process reads
a JSON value a line and answers each with one (`serve`); it lives until the stage ends, or until one question was too much for it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
WALL = 20.0
"""Seconds of waiting for each second of processor time, since other programs run too."""
LARGEST_ANSWER = 64 * MIB
NO_MEMORY = 77
"""Exit code of a process that had none left. Libraries that are not written in Python abort."""
ENDING = 0.5
"""Seconds for it to end by itself when its pipes are closed."""


class TooMuch(Exception):
    """What became of a question that took more than it may, as a clause: "takes more than 5 s"."""


class BoundedProcess:
    """One process at a time that runs `python -m MODULE`; it is started with the first question, and again after one that ended it."""

    def __init__(self, module: str, *, cpu_seconds: int, memory: int) -> None:
        """`cpu_seconds`: for each question; `memory`: bytes of its address space."""
        self._module, self._seconds, self._memory = module, cpu_seconds, memory
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self.close)

    def ask(self, question: Any) -> Any:
        """The answer, a JSON value. Raises TooMuch, and OSError where no process can be started."""
        with self._lock:
            process = self._running()
            deadline = time.monotonic() + WALL * self._seconds
            try:
                return json.loads(_exchange(process, json.dumps(question).encode() + b"\n", deadline))
            except (TimeoutError, EOFError, BrokenPipeError) as error:
                code = self._end()
                slow = isinstance(error, TimeoutError) or code in (-signal.SIGXCPU, -signal.SIGKILL)
                if not slow and code not in (NO_MEMORY, -signal.SIGABRT):
                    raise TooMuch(f"ends the process that does it (exit code {code})") from None
                raise TooMuch(f"takes more than {f'{self._seconds} s' if slow else f'{self._memory // MIB} MiB of memory'}") from None

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _end(self) -> int:
        """End the process; its exit code. One of which the kernel closed the pipes has ended by itself, or is about to."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._owner != os.getpid():  # of the process that this one was forked from
            process.returncode = 0
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=ENDING)
        process.kill()
        return process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._end()
            # What this Python finds, a toolchain's packages among it, is what that one finds.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            command = [sys.executable, "-m", self._module, str(self._seconds), str(self._memory)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
            self._owner = os.getpid()
        return self._process


def _exchange(process: subprocess.Popen[bytes], question: bytes, deadline: float) -> bytes:
    """The line that answers a question. TimeoutError, EOFError where the process ended, BrokenPipeError where it had ended."""
    assert process.stdin is not None and process.stdout is not None
    writing, reading = process.stdin.fileno(), process.stdout.fileno()
    os.set_blocking(writing, False)
    answer = bytearray()
    left = memoryview(question)
    while not answer.endswith(b"\n"):
        rest = deadline - time.monotonic()
        if rest <= 0:
            raise TimeoutError
        readable, writable, _ = select.select([reading], [writing] if left else [], [], rest)
        if writable:
            left = left[os.write(writing, left) :]
        if readable:
            part = os.read(reading, MIB)
            if not part or len(answer) > LARGEST_ANSWER:
                raise EOFError
            answer += part
    return bytes(answer)


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer the questions of standard input until it ends: the body of a module that `BoundedProcess` runs.

    The limits are its two arguments. Where a question takes more memory than there is, the process ends.
    """
    seconds, memory = int(sys.argv[1]), int(sys.argv[2])
    with contextlib.suppress(ValueError, OSError):  # a lower limit of the user's counts
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        try:
            reply = json.dumps(answer(json.loads(line))).encode() + b"\n"
        except MemoryError:
            os._exit(NO_MEMORY)
        out.write(reply)
        out.flush()
