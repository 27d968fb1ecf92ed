"""The process of one attempt at a delivery: `python -m handlers.deliver`, what it says, and its limits.

Used by one thread, which must live as long as the process: the kernel ends it with that thread. The order, secrets in it, lies in a file
without a name that only this process has open. What it writes to standard error goes to a log, without the secrets that ckptd knows.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from daemon.contract.delivering.orders import End, Note, Order, Report, Warned
from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import Code, FaultCode
from daemon.contract.faults.secrets import censored, censored_values
from daemon.contract.records import Record

SILENT_SECONDS = 1800.0
"""Without a line: a far end may take long over the end of a large upload, and says nothing meanwhile."""
MOST_MEMORY = 1 << 30
"""Bytes of the process by itself. Deliveries read in pieces; the libraries for it take a twentieth of that."""
LONGEST_LINE = 1 << 20
MOST_SAID = 64 << 20
"""Bytes on standard output in all."""
LOG_BYTES = 1 << 20
_BLOCK = 1 << 16
_AT_ONCE = 16
"""Blocks that are read of one pipe in one round, so that one process does not keep the others waiting."""
EXIT_BAD_ORDER = 65

Said = Note | Report | Warned | End
_KINDS: Mapping[str, type[Record]] = {"note": Note, "report": Report, "warning": Warned, "end": End}


class DeliveryProcess:
    """A process that carries one export to one target."""

    def __init__(self, order: Order, environment: Mapping[str, str], log: Path) -> None:
        """Start it. Raises OSError."""
        self._order, self._log = order, AttemptLog(log, LOG_BYTES)
        stdin = os.memfd_create("order", os.MFD_CLOEXEC)
        try:
            self._errors = open(log, "ab", buffering=0)  # noqa: SIM115
            with open(os.dup(stdin), "wb") as file:
                file.write(order.model_dump_json().encode())
            os.lseek(stdin, 0, os.SEEK_SET)
            # In our session: a child of ours that leads one counts as left behind by an attempt, and is ended with it.
            self._child = subprocess.Popen(
                [sys.executable, "-m", "handlers.deliver"], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/",
                process_group=0, env=dict(environment),
            )  # fmt: skip
        finally:
            os.close(stdin)
        assert self._child.stdout is not None and self._child.stderr is not None
        self._lines, self._texts = _Pipe(self._child.stdout.fileno()), _Pipe(self._child.stderr.fileno())
        self._heard = time.monotonic()
        self.end: End | None = None
        """The last line that it said."""
        self._fault: Fault | None = None
        """Why we ended it."""
        self._stopped = False

    @property
    def handles(self) -> tuple[int, ...]:
        """The file descriptors that become readable when there is something to read."""
        return tuple(pipe.handle for pipe in (self._lines, self._texts) if pipe.open)

    def read(self) -> list[Said]:
        """What it said since the last call."""
        self._keep_texts()
        said = [record for line in self._lines.read() if (record := self._record_of(line)) is not None]
        if said:
            self._heard = time.monotonic()
        if len(self._lines.left) > LONGEST_LINE or self._lines.count > MOST_SAID:
            self._give_up(FaultCode.UNEXPECTED, "its process writes without end to where it reports", "report it with the attempt's log")
        for record in said:
            self.end = record if isinstance(record, End) else self.end
        return said

    def _record_of(self, line: bytes) -> Said | None:
        """A line as what it says, without secrets; None, and the line in the log, where it says nothing."""
        try:
            value = json.loads(line)
            kind = _KINDS[value["say"]]
            if kind is Note and censored_values(value) != value:
                self._write(b"a note that holds a secret was not kept\n")
                return None
            record: Any = kind.model_validate(censored_values(value))
        except (ValueError, LookupError, TypeError, RecursionError):
            self._write(b"not understood: " + line[:1000] + b"\n")
            return None
        said: Said = record
        return said

    def _keep_texts(self) -> None:
        lines = self._texts.read()
        if len(self._texts.left) > LONGEST_LINE or (self._texts.left and not self._texts.open):
            lines.append(self._texts.take_left())
        if lines:
            self._write(b"".join(line[:_BLOCK] + b"\n" for line in lines))

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):  # without room there is no log, and the delivery goes on
            self._errors.write(censored(text.decode("utf-8", "replace")).encode())
            self._log.trim()

    def watch(self) -> None:
        """End it where it is beyond its limits."""
        if self._fault is not None or self._stopped:
            return
        if time.monotonic() - self._heard > SILENT_SECONDS:
            cause = f"its process said nothing for {SILENT_SECONDS / 60:.0f} minutes"
            self._give_up(FaultCode.HUNG, cause, "look at the far end; the delivery is tried again by itself")
        elif (held := _memory_of(self._child.pid)) > MOST_MEMORY:
            cause = f"its process held {held >> 20} MiB, more than the {MOST_MEMORY >> 20} MiB that a delivery may use"
            self._give_up(FaultCode.MEMORY_LIMIT, cause, "report it with the attempt's log")

    def stop(self) -> None:
        """Ask it to end."""
        self._stopped = True
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now, and what it started."""
        self._signal(signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether it lives no more. What it started is ended then, and what it said can be read to its end."""
        if self._child.returncode is None:
            if os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self._signal(signal.SIGKILL)  # while its number is still its own: what it started is in its group
            self._child.wait()
        return True

    def conclude(self, take: Callable[[list[Said]], None]) -> End:
        """How it ended, once it has: its own word, or a fault that says what became of it. `take` gets the rest of what it said before."""
        while self._lines.open or self._texts.open:
            before = self._lines.count + self._texts.count
            take(self.read())
            if self._lines.count + self._texts.count == before and not self._is_readable():
                break  # something that left the group holds them open
        self._close()
        if self.end is not None:
            return self.end
        code, cause, remedy = _death(self._child.returncode)
        operation = f"deliver to {self._order.name}"
        fault = self._fault or Fault(code=code, operation=operation, cause=cause, remedy=remedy, path=str(self._log.path))
        return End(fault=fault)

    def _is_readable(self) -> bool:
        return bool(select.select(self.handles, (), (), 0)[0])

    def _give_up(self, code: Code, cause: str, remedy: str) -> None:
        if self._fault is None:
            operation = f"deliver to {self._order.name}"
            self._fault = Fault(code=code, operation=operation, cause=cause, remedy=remedy, path=str(self._log.path))
        self.kill()

    def _signal(self, number: int) -> None:
        if self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)

    def _close(self) -> None:
        for stream in (self._child.stdout, self._child.stderr, self._errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._log.finish()


class _Pipe:
    """The end of a pipe that is read line by line without waiting."""

    def __init__(self, handle: int) -> None:
        os.set_blocking(handle, False)
        self.handle, self.open, self.count, self.left = handle, True, 0, b""

    def read(self) -> list[bytes]:
        """The whole lines that are there."""
        parts = [self.left, *self._blocks()]
        *lines, self.left = b"".join(parts).split(b"\n")
        return lines

    def take_left(self) -> bytes:
        """The line that has not ended."""
        left, self.left = self.left, b""
        return left

    def _blocks(self) -> Iterator[bytes]:
        for _ in range(_AT_ONCE if self.open else 0):
            try:
                part = os.read(self.handle, _BLOCK)
            except BlockingIOError:
                return
            if not part:
                self.open = False
                return
            self.count += len(part)
            yield part


def _memory_of(pid: int) -> int:
    """Bytes of a process's resident memory; 0 where it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _death(code: int) -> tuple[Code, str, str]:
    """Code, cause and remedy of a process that ended without its last line."""
    if code == EXIT_BAD_ORDER:
        return FaultCode.BAD_RESULT, "its process could not use the order", "restart the daemon if ckptd was replaced while it ran"
    if code == -signal.SIGKILL:
        remedy = "look into the kernel's log for a lack of memory, and for who else sends signals on this machine"
        return FaultCode.KILLED, "its process was killed by SIGKILL, which ckptd did not send", remedy
    if code < 0:
        return FaultCode.CRASHED, f"its process was ended by signal {-code}", "read the attempt's log"
    return FaultCode.CRASHED, f"its process ended with exit code {code} and without a word", "read the attempt's log"
