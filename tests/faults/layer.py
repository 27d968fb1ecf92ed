"""Makes system calls of a real process and of all its descendants fail, the n-th of a kind, with a chosen errno.

    with Faults(Rule("fsync", errno.EIO, nth=3, below=folder)) as faults:
        process = faults.start([sys.executable, "-m", "daemon", ...])

Linux asks a thread of the test about each call (seccomp's user notification), so neither root, nor a compiler, nor
the help of the tested program is needed, and SQLite's calls are caught like Python's. Limits: Linux 5.9 or newer on
x86_64 or aarch64; what is written through a memory map is not seen; symbolic links in paths are not resolved.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.faults.calls import KINDS, Call, this_processor

INSTALL = Path(__file__).with_name("install.py")
RECEIVE, SEND, STILL_THERE = 0xC0502100, 0xC0182101, 0x40082102
CONTINUE = 1
AT_FDCWD = -100
_HELD = re.compile(r"/proc/self/fd/([0-9]+)(?:/(.*))?")
PAGE = 4096
Decider = Callable[[Collection[str], tuple[str, ...]], int | None]
"""Given the kinds of a call and the paths that it works on: the errno with which it fails, None to let it through."""


@dataclass(frozen=True)
class Rule:
    """Which calls fail. Counts matching calls, whether it fails them or not.

    `kind`: one of `KINDS`. `errno`: None only counts. `nth`: the first one that fails, from 1. `calls`: how many
    fail from there on, None for all. `below`: only what lies below this folder, or is it.
    """

    kind: str
    errno: int | None = None
    nth: int = 1
    calls: int | None = 1
    below: Path | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind} is none of {KINDS}")

    def wants(self, kinds: Iterable[str], paths: Sequence[str]) -> bool:
        """Whether a call of these kinds on these paths is counted."""
        if self.kind not in kinds:
            return False
        below = None if self.below is None else str(self.below)
        return below is None or any(path == below or path.startswith(below + "/") for path in paths)

    def fails(self, count: int) -> bool:
        """Whether the `count`-th matching call fails."""
        return self.errno is not None and count >= self.nth and (self.calls is None or count < self.nth + self.calls)


@dataclass(frozen=True)
class Seen:
    """A call that matched a rule, or was made to fail; `errno` where it was."""

    kind: str
    paths: tuple[str, ...]
    pid: int
    errno: int | None


class Faults:
    """The layer. `kinds`: kinds that `set` may name later, beside those of the rules given here."""

    def __init__(self, *rules: Rule, kinds: Iterable[str] = ()) -> None:
        wanted = {"open" if kind == "open-to-write" else kind for kind in (*kinds, *(rule.kind for rule in rules))}
        self._processor = this_processor()
        self._numbers = [number for number, call in self._processor.calls.items() if call.kind in wanted]
        self._lock = threading.Lock()
        self._started: list[tuple[subprocess.Popen[Any], int, threading.Thread]] = []
        self._problem: BaseException | None = None
        self.set(*rules)

    def set(self, *rules: Rule, decider: Decider | None = None) -> None:
        """From now on these rules, with their counts at 0; `decider`, which must be quick, is asked where none of them fails a call."""
        with self._lock:
            self._rules = dict.fromkeys(rules, 0)
            self._decider = decider
            self._calls: list[Seen] = []

    @property
    def seen(self) -> int:
        """How many calls matched the rules, a call of several rules once."""
        with self._lock:
            return len(self._calls)

    @property
    def calls(self) -> list[Seen]:
        """The calls that matched, in order."""
        with self._lock:
            return list(self._calls)

    @property
    def failed(self) -> list[Seen]:
        """The calls that were made to fail."""
        return [call for call in self.calls if call.errno is not None]

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process under the layer. Raises RuntimeError, in one sentence, where the system does not allow it."""
        ours, theirs = socket.socketpair()
        numbers = ",".join(map(str, self._numbers))
        head = [sys.executable, "-I", "-S", str(INSTALL), str(theirs.fileno()), str(self._processor.audit), str(self._processor.seccomp)]
        with ours, theirs:
            process = subprocess.Popen([*head, numbers, *command], pass_fds=(theirs.fileno(), *options.pop("pass_fds", ())), **options)
            theirs.close()
            said, rights, _, _ = ours.recvmsg(1000, socket.CMSG_SPACE(4))
        if not rights:
            process.wait(10)
            cause = said[1:].decode() or f"the process ended with {process.returncode}"
            raise RuntimeError(f"Could not put the fault layer over a process: {cause}. These tests need seccomp's user notification.")
        listener = array.array("i", rights[0][2])[0]
        thread = threading.Thread(target=self._answer, args=(listener,), name="faults", daemon=True)
        self._started.append((process, listener, thread))
        thread.start()
        return process

    def run(self, command: Sequence[str], timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; gives its exit status and what it said."""
        process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def __enter__(self) -> Faults:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, and see to it that nothing is left under the filter."""
        self.set()
        for process, listener, thread in self._started:
            _end_family(process)
            thread.join(20)
            alive = thread.is_alive()
            if not alive:
                os.close(listener)
            assert not alive, "a process under the fault layer outlived the one that started it"
        if self._problem is not None:
            raise self._problem

    def _answer(self, listener: int) -> None:
        """Answer every call until no process is left under the filter."""
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while True:
            ((_, events),) = poll.poll()
            if not events & select.POLLIN:
                return
            asked = bytearray(80)
            try:
                fcntl.ioctl(listener, RECEIVE, asked)
            except OSError:
                continue  # killed before we looked
            number = None
            try:
                number = self._judge(listener, asked)
            except BaseException as error:
                self._problem = error
            flags = CONTINUE if number is None else 0
            with contextlib.suppress(OSError):  # killed meanwhile
                fcntl.ioctl(listener, SEND, bytearray(asked[:8] + struct.pack("=qiI", 0, -(number or 0), flags)))

    def _judge(self, listener: int, asked: bytearray) -> int | None:
        """The errno of this call, None to let it through."""
        _, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", asked)
        call = self._processor.calls[number]
        try:
            paths = tuple(_path(pid, name, arguments) for name in call.names)
            kinds = (call.kind, "open-to-write") if _writes(pid, call, arguments) else (call.kind,)
            fcntl.ioctl(listener, STILL_THERE, bytearray(asked[:8]))  # else we read some other process
        except OSError:
            return None
        with self._lock:
            wanting = [rule for rule in self._rules if rule.wants(kinds, paths)]
            failing = None
            for rule in wanting:
                self._rules[rule] += 1
                failing = rule.errno if rule.fails(self._rules[rule]) else failing
            if failing is None and self._decider is not None:
                failing = self._decider(kinds, paths)
            if wanting or failing is not None:
                self._calls.append(Seen(call.kind, paths, pid, failing))
            return failing


def _end_family(process: subprocess.Popen[Any]) -> None:
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait(20)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _signed(value: int) -> int:
    return struct.unpack("=i", struct.pack("=I", value & 0xFFFFFFFF))[0]


def _memory(pid: int, address: int, size: int) -> bytes:
    descriptor = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return os.pread(descriptor, size, address)
    finally:
        os.close(descriptor)


def _text(pid: int, address: int) -> str:
    """A string of the process, read page by page: the next page need not exist."""
    found = b""
    while b"\0" not in found and len(found) < PAGE:
        found += _memory(pid, address + len(found), PAGE - (address + len(found)) % PAGE)
    return os.fsdecode(found.split(b"\0", 1)[0])


def _handle(pid: int, descriptor: int) -> str:
    return os.readlink(f"/proc/{pid}/cwd" if descriptor == AT_FDCWD else f"/proc/{pid}/fd/{descriptor}")


def _path(pid: int, name: str, arguments: Sequence[int]) -> str:
    """What a call works on, as an absolute path."""
    at = int(name[-1])
    if name.startswith("fd"):
        return _handle(pid, _signed(arguments[at]))
    text = _text(pid, arguments[at] if name.startswith("path") else arguments[at + 1])
    if not os.path.isabs(text):
        text = os.path.join(_handle(pid, AT_FDCWD if name.startswith("path") else _signed(arguments[at])), text)
    if held := _HELD.fullmatch(text):  # a folder that is held open: its name in the process's own words
        text = os.path.join(_handle(pid, int(held[1])), held[2] or "")
    return os.path.normpath(text)


def _writes(pid: int, call: Call, arguments: Sequence[int]) -> bool:
    """Whether an opening may write or create."""
    if not call.flags:
        return False
    at = int(call.flags[-1])
    flags = arguments[at] if call.flags.startswith("arg") else struct.unpack("=Q", _memory(pid, arguments[at], 8))[0]
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def settle(seconds: float, condition: Any) -> bool:
    """Wait until a condition holds; says whether it came to hold in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False
