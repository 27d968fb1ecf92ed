"""Attempts that are forked from a process which has libraries loaded: importing them costs more than many stages do.

`serve` is that process. It holds no model and starts no work: it loads the libraries, forks itself for each attempt that the daemon asks
for, also while others run, and says how each ended. The daemon's side is `daemon.running.workers.warm`. `fork` does the same inside
of an attempt, for a worker of its own. What is forked is a process like any other: its memory goes back with its end, and a crash is
its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, NoReturn

from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.values import build_models
from handlers.child import process

EXIT_NO_GROUP = 71
MESSAGE_LIMIT = 1 << 16
PAUSE_SECONDS = 1.0
"""How long an attempt that needs one library alone is waited for, once that is loaded."""
DESCRIPTORS = 3
"""Of an order: where standard output and error go, and where the attempt hears that it may begin."""
_ASKED = (signal.SIGTERM,)
_PR_SET_NAME = 15
_ENV_START = 47
"""Place of env_start behind the name in /proc/PID/stat, whose 50th field it is."""

_forked = False


def is_forked() -> bool:
    """Return whether this process comes from one that had libraries loaded, so that forking it spares loading them again."""
    return _forked


def serve(
    descriptor: int, limits: ChildLimits, idle: float, run: Callable[[str], int], libraries: Iterable[str], first: str = ""
) -> int:  # fmt: skip
    """Fork an attempt for each order on the socket `descriptor`; `run` gets its job file and gives its exit code.

    `libraries`: modules to import before, and names of modules (`module:name`) that are made when they are asked for; then our models are
    built, which each attempt and worker would do for itself. `first`: the one of them that an attempt waits for which needs no later one:
    it is forked before those are loaded. Ends when the other side does, or after `idle` seconds without an attempt.
    """
    process.bind(limits)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who ends a whole service asks its attempts, which end with this process
    process.set_environment(limits, tempfile.gettempdir())
    control = socket.socket(fileno=descriptor)
    attempts = _Attempts(control, run)
    with contextlib.suppress(OSError):
        if attempts.load(libraries, first):
            control.send(b'{"ready": true}')
            attempts.serve(idle)
    return 0


class _Attempts:
    """Those that were forked from this process and whose end the other side has not taken note of."""

    def __init__(self, control: socket.socket, run: Callable[[str], int]) -> None:
        self._control, self._run = control, run
        self._running = dict[int, int]()
        """The descriptor that tells of a process's end → its id."""
        self._ended = set[int]()
        """They stay zombies until the other side says otherwise, so that their ids and their sessions stay their own."""

    def load(self, libraries: Iterable[str], first: str) -> bool:
        """Import them; between two of them look after attempts. False where the other side has ended. Raises OSError."""
        gc.disable()  # modules stay: to look through them again and again is a fifth of the time
        for name in libraries:
            with contextlib.suppress(Exception):  # the stage that needs it says what is wrong
                pkgutil.resolve_name(name)
            if name == first:
                self._control.send(json.dumps({"loaded": name}).encode())
                if not self._attend(PAUSE_SECONDS):
                    return False
                self._control.send(b'{"loading": true}')
            while first and self._asked():
                if not self._attend(0.0):
                    return False
        build_models()
        gc.freeze()  # the collector of a forked process does not touch, and so copy, what all of them share
        gc.enable()
        return True

    def serve(self, idle: float) -> None:
        """Serve until the other side ends, or asks for nothing for so many seconds while none is left. Raises OSError."""
        while self._asked(None if self._running or self._ended else idle):
            if not self._attend(0.0):
                return

    def _asked(self, seconds: float | None = 0.0) -> list[int]:
        """Return the descriptors, of those of the other side and of the attempts, on which something has come within so many seconds."""
        return select.select([self._control.fileno(), *self._running], [], [], seconds)[0]

    def _attend(self, seconds: float) -> bool:
        """Do what is asked within so many seconds, and tell of those that have ended; False where the other side has ended."""
        for descriptor in self._asked(seconds):
            if descriptor == self._control.fileno():
                message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_LIMIT, DESCRIPTORS)
                if not message:
                    self._kill()
                    return False
                self._follow(json.loads(message), descriptors)
            else:
                self._tell(descriptor)
        return True

    def _follow(self, order: dict[str, Any], descriptors: list[int]) -> None:
        if (ended := order.get("reap")) is not None:
            self._ended.discard(ended)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(ended, 0)
            return
        try:
            if len(descriptors) < DESCRIPTORS:  # the kernel leaves out those for which there is no room
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            said: dict[str, Any] = {"pid": self._forked(order, descriptors)}
        except OSError as error:  # of this attempt alone: the others go on
            said = {"refused": error.errno or 0}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._control.send(json.dumps({"order": order["order"], **said}).encode())

    def _forked(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """Return the id of the process that was forked for an order. Raises OSError."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED)  # asked to stop before `become` listens, it stops then
        try:
            child = os.fork()
            if child == 0:
                self._control.close()
                for descriptor in self._running:
                    os.close(descriptor)
                become(lambda: _start(order, descriptors, self._run))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED)
        try:
            self._running[os.pidfd_open(child)] = child
        except OSError:  # whose end nobody would hear of; it waits to be told to begin, and is not
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        return child

    def _tell(self, descriptor: int) -> None:
        child, state = self._running.pop(descriptor), None
        with contextlib.suppress(ChildProcessError):  # the other side has seen its end by itself
            state = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
        os.close(descriptor)
        if state is None:
            return
        self._ended.add(child)
        code = state.si_status if state.si_code == os.CLD_EXITED else -state.si_status
        self._control.send(json.dumps({"ended": child, "code": code}).encode())

    def _kill(self) -> None:
        for child in self._running.values():
            os.kill(child, signal.SIGKILL)


def _start(order: dict[str, Any], descriptors: list[int], run: Callable[[str], int]) -> int:
    os.setsid()
    *outputs, go = descriptors
    if not os.read(go, 1):
        return 0  # the other side has waited too long for this, and may have started the same attempt by itself
    os.close(go)
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if order["group"]:
        try:
            Path(order["group"]).write_text("0", encoding="utf-8")
        except OSError as error:
            print(f"could not enter the control group: {error}", file=sys.stderr, flush=True)
            return EXIT_NO_GROUP
    for name, value in order["environment"].items():
        _show(name, value)
        os.environ[name] = value
    os.chdir(order["folder"])
    name_process(order["name"])
    return run(order["job"])


def name_process(name: str) -> None:
    """Let `ps -o comm` show this process by a name."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])


def _show(name: str, value: str) -> None:
    """Let others see a variable in this process's /proc/PID/environ: that holds what the first program got, so it is written over there.

    The program was started with the variable and a value that is long enough. See proc(5), env_start of /proc/PID/stat.
    """
    start = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[_ENV_START])
    given = Path("/proc/self/environ").read_bytes()
    before, marker, after = (b"\0" + given).partition(b"\0" + name.encode() + b"=")
    room, text = len(after.partition(b"\0")[0]), os.fsencode(value)
    if marker and start and len(text) <= room:
        ctypes.memmove(start + len(before) + len(marker) - 1, text.ljust(room, b"\0"), room)


def become(run: Callable[[], int], *, loaded: bool = True) -> NoReturn:
    """Do what a forked process does instead of going on; does not return. `loaded`: whether it comes from one that has libraries loaded."""
    global _forked
    _forked, code = loaded, 1
    gc.enable()  # it may come from one that is still loading libraries
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED)
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)  # as in `handlers.__main__`; nothing of what it was forked from may run twice


class Forked:
    """A process that `fork` started, as far as it is a `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or the negative number of the signal that ended it. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            child, status = os.waitpid(self.pid, 0 if end is None else os.WNOHANG)
            if child:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif end is not None and time.monotonic() >= end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            else:
                time.sleep(0.005)
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless its end was seen."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def fork(run: Callable[[], int], errors: int) -> Forked:
    """Run `run` in a process of its own with pipes for standard input and output, and the descriptor `errors` for standard error.

    To be called in a process that `is_forked`, before it has computed anything: no thread of a library's may run then.
    """
    theirs_in, ours_in = os.pipe()
    ours_out, theirs_out = os.pipe()
    child = os.fork()
    if child == 0:
        for number, descriptor in enumerate((theirs_in, theirs_out, errors)):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 1 << 16 else 1 << 16)
        become(run)
    os.close(theirs_in)
    os.close(theirs_out)
    return Forked(child, os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb"))


def called(run: Callable[[], int], seconds: float) -> subprocess.CompletedProcess[str]:
    """Return what `run` writes to standard output and error in a process of its own, and its exit code; see `fork`. Raises
    subprocess.TimeoutExpired once it has ended a process that took longer."""

    def work() -> int:
        code = run()
        sys.stdout.flush()
        return code

    sys.stdout.flush()
    said, end = b"", time.monotonic() + seconds
    with tempfile.TemporaryFile() as errors:
        forked = fork(work, errors.fileno())
        assert forked.stdin is not None and forked.stdout is not None
        with forked.stdin, forked.stdout:
            while select.select([forked.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                if not (block := os.read(forked.stdout.fileno(), 1 << 16)):
                    break
                said += block
            else:
                forked.kill()
            code = forked.wait()
        if code == -signal.SIGKILL and time.monotonic() >= end:
            raise subprocess.TimeoutExpired(str(forked.pid), seconds)
        errors.seek(0)
        return subprocess.CompletedProcess((), code, said.decode(errors="replace"), errors.read().decode(errors="replace"))
