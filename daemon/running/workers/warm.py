"""Processes that have libraries loaded, from which attempts are forked: the daemon's side of `handlers.child.warm`.

Used by `worker` and `executor` alone, from their one thread. One set of libraries is PyTorch's, the other what stages without PyTorch need.
All attempts that need a set, with however many threads and at the same time too, are forked from one process. The first attempt of a job,
whatever its stage, has both get ready; one that is still loading what an attempt needs is waited for, since to load the same beside it
takes longer. Otherwise an attempt is started like any other. A process that nobody needs ends by itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from daemon.contract.jobs.messages import ChildLimits, StageContext
from daemon.contract.jobs.plan import find_spec
from daemon.contract.values import Json
from daemon.running.workers import containment
from daemon.system.box import memory
from daemon.system.processes import procfs
from daemon.toolchains.registry import HANDLERS

Libraries = Literal["torch", "light"]
"""Names in `handlers.__main__.LIBRARIES`."""
NEEDS_BYTES: dict[Libraries, int] = {"torch": 512 << 20, "light": 192 << 20}
"""What the loaded libraries take, generously; with less than that to spare none is started."""
LOADING_SECONDS = 30.0
"""How long an attempt waits for one to have loaded its libraries, instead of loading them beside it."""
LIFE_SECONDS = 3600.0
"""After which one is replaced, so that what libraries leak or cache ends some day."""
ANSWER_SECONDS = 5.0
UNHEARD_SECONDS = 1.0
"""After which an end that the kernel knows of counts, whether or not it was told."""
END_SECONDS = 0.5
PATH_LIMIT = 4096
"""Room for an attempt's mark, which is a path."""
MOST = 4
_LIMIT = 1 << 16


@dataclass(frozen=True)
class Kind:
    """What all attempts that are forked from one process share."""

    libraries: Libraries
    limits: ChildLimits
    environment: tuple[tuple[str, str], ...]
    installed: frozenset[tuple[str, int]] = field(default_factory=lambda: _installed())
    """The packages: after one was updated or removed, what is loaded is of the version before."""


def _installed() -> frozenset[tuple[str, int]]:
    """Where each package on a child's path is described, and when that was written.

    A child is started with `-P`: the first folder of our path, in which this program was started or lies, is not on its path.
    """
    distributions = set[tuple[str, int]]()
    for folder in sys.path[not sys.flags.safe_path :]:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            distributions |= {
                (entry.path, entry.stat().st_mtime_ns) for entry in entries if entry.name.endswith((".dist-info", ".egg-info", ".egg-link"))
            }
    return frozenset(distributions)


def kind_of(libraries: Libraries, limits: ChildLimits, environment: Mapping[str, str]) -> Kind:
    """What an attempt with these limits and variables can be forked from. It is loaded with one thread, since a process with more can't be
    forked safely; an attempt tells PyTorch how many it has (`handlers.child.process.set_environment`). Those of numpy stay at one."""
    shared = limits.model_copy(update={"parent_pid": os.getpid(), "resumable": False, "threads": 1})
    return Kind(libraries, shared, tuple(sorted(environment.items())))


def wanted(context: StageContext) -> Libraries | None:
    """What an attempt of this stage would load in the Python that ckptd runs in; None where that is another Python, or where it uses a GPU,
    whose driver does not outlive a fork."""
    spec = find_spec(context.stage)
    if spec is None or context.toolchain or context.limits.device != "cpu":
        return None
    return "torch" if spec.uses_torch else "light"


def enough(context: StageContext) -> str:
    """The last library of its set that an attempt of this stage needs; "" for one that needs all."""
    spec = find_spec(context.stage)
    return "torch" if spec is not None and "torch" in spec.libraries and "transformers" not in spec.libraries else ""


def comes_first(context: StageContext) -> bool:
    """Whether stages that want one of either follow this attempt, which nothing may disturb if it measures time."""
    spec = find_spec(context.stage)
    if spec is None or context.limits.device != "cpu":
        return False
    return not spec.alone and context.bench is None and context.stage != "report"


class Loaded:
    """One such process."""

    def __init__(self, kind: Kind, idle: float, first: str = "") -> None:
        """Start it; it loads its libraries on its own. `first`: what is `enough` for an attempt that waits for it. Raises OSError."""
        self.kind = kind
        self.born = time.monotonic()
        self._spent = False
        self._ready = False
        self._waits_with = ""
        """The last library that it has loaded, while it waits for an attempt that needs no later one."""
        self._codes = dict[int, int | None]()
        """Those that were forked and whose end nobody has waited for → what they ended with; None while they run."""
        self._orders = 0
        self._answer: Json | None = None
        """To the last order: `pid` of what was forked for it, or `refused`, the number of the error why nothing was."""
        self._unheard = dict[int, float]()
        """Those that have ended as the kernel says, and since when it has not been told here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = ("--loaded", kind.libraries, str(theirs.fileno()), kind.limits.model_dump_json(), str(idle), first)
            self.process = subprocess.Popen(
                [HANDLERS[0], "-P", *HANDLERS[1:], *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True, cwd="/", env={**dict(kind.environment), containment.MARK: " " * PATH_LIMIT},
            )  # fmt: skip
        self._control = ours
        containment.keep(self.process.pid)

    @property
    def ready(self) -> bool:
        """It has loaded its libraries and lives."""
        return self.has("")

    def has(self, library: str) -> bool:
        """It has loaded what is `enough` for an attempt, and lives."""
        self._listen(0.0)
        return (self._ready or (bool(library) and library == self._waits_with)) and self.process.poll() is None

    @property
    def attempts(self) -> int:
        """Those that were forked from it and whose end nobody has waited for."""
        return len(self._codes)

    @property
    def lasts(self) -> bool:
        """It is ready, or will be: neither dead, nor too old, nor one that did not answer."""
        return not self._spent and time.monotonic() - self.born <= LIFE_SECONDS and self.process.poll() is None

    def _listen(self, seconds: float) -> bool:
        """Take note of the next message, and of all that have come; whether there was one in time."""
        heard = False
        while select.select([self._control], [], [], 0.0 if heard else seconds)[0]:
            try:
                message = json.loads(self._control.recv(_LIMIT))
            except (OSError, ValueError):  # its end
                self._spent = True
                return heard
            heard = True
            self._ready |= "ready" in message
            if "loaded" in message or "loading" in message:
                self._waits_with = message.get("loaded", "")
            if message.get("order") == self._orders:
                self._answer = message
                if "pid" in message:
                    self._codes[message["pid"]] = None
            if (ended := message.get("ended")) in self._codes:
                self._codes[ended] = message["code"]
            elif ended is not None:  # of an order that nobody waited for any longer: it did nothing
                self._reap(ended)
        return heard

    def fork(self, order: Json, descriptors: list[int], stdout: int) -> Forked:
        """The attempt that `order` describes. `descriptors`: its standard output and error; `stdout`: the other end of the first, which is
        the attempt's from now on. Raises OSError; it does nothing then, however late it is forked."""
        self._listen(0.0)
        self._orders, self._answer, self._waits_with = self._orders + 1, None, ""
        waiting, go = os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps({"order": self._orders, **order}).encode()], [*descriptors, waiting])
            end = time.monotonic() + ANSWER_SECONDS
            while self._answer is None:  # others may end before it starts
                if not self._listen(max(0.0, end - time.monotonic())):
                    self._spent = True  # nothing else is forked from it
                    raise OSError(errno.ESRCH, "the process that an attempt was to be forked from does not answer")
            if "refused" in self._answer:
                raise OSError(self._answer["refused"], "an attempt could not be forked")
            pid = int(self._answer["pid"])
            try:
                os.write(go, b"1")
            except OSError:  # it has ended already
                self.forget(pid)
                raise
        except OSError:
            self._orders += 1
            raise
        finally:
            os.close(waiting)
            os.close(go)
        return Forked(self, pid, os.fdopen(stdout, "rb"))

    def code_of(self, pid: int) -> int | None:
        """Exit code, or negative number of a signal, of an attempt that has ended; None while it runs."""
        self._listen(0.0)
        code = self._codes[pid]
        if code is not None:
            return code
        known = procfs.entry(pid)
        if known is not None and not known.dead:
            self._unheard.pop(pid, None)
            return None
        if self.process.poll() is not None:  # without the process that it was forked from it is killed
            return -signal.SIGKILL
        since = self._unheard.setdefault(pid, time.monotonic())
        code = procfs.exit_code(pid)
        if not self._ready and code is not None:  # the process that should tell is loading a library
            return code
        if time.monotonic() - since < UNHEARD_SECONDS:  # it stands still
            return None
        return -signal.SIGKILL if code is None else code

    def forget(self, pid: int) -> None:
        """An attempt that has ended is not needed as a zombie any more; nothing happens at a second call."""
        if pid in self._codes:
            del self._codes[pid]
            self._unheard.pop(pid, None)
            self._reap(pid)

    def _reap(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"reap": pid}).encode())

    def end(self) -> None:
        """End it, and what was forked from it."""
        self._control.close()
        if self._ready:  # it ends at once, and takes the attempts' zombies away
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
        self.process.kill()
        self.process.wait()
        containment.let_go(self.process.pid)


class Forked:
    """An attempt's first process, as far as it is a `subprocess.Popen`."""

    def __init__(self, source: Loaded, pid: int, stdout: IO[bytes]) -> None:
        self._source = source
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None

    def status(self) -> int | None:
        """Exit code, or negative number of a signal, of a process that has ended; None while it runs. It stays a zombie until `wait`."""
        if self.returncode is None:
            self.returncode = self._source.code_of(self.pid)
        return self.returncode

    def wait(self) -> int:
        """The same once it has ended; its process is gone then."""
        while (code := self.status()) is None:
            time.sleep(0.005)
        self._source.forget(self.pid)
        return code


_all: list[Loaded] = []


def take(kind: Kind, library: str = "") -> Loaded | None:
    """A process of this kind to fork an attempt from for which `library` is `enough`, if there is one."""
    return next((source for source in _all if source.kind == kind and source.lasts and source.has(library)), None)


def get_ready(kind: Kind, idle: float, reserve: int, first: str = "") -> None:
    """Have a process of this kind for the attempts to come, if the box has the memory for it. `first`: see Loaded."""
    for source in [source for source in _all if not source.attempts and not source.lasts]:
        drop(source)
    # What took seconds to load makes no room for what takes a moment.
    free = sorted((source for source in _all if not source.attempts), key=lambda source: source.kind.libraries == "torch")
    if kind.libraries == "light":
        free = [source for source in free if source.kind.libraries == "light"]
    if any(source.kind == kind and source.lasts for source in _all) or memory()[1] < reserve + NEEDS_BYTES[kind.libraries]:
        return
    if len(_all) >= MOST:
        if not free:
            return
        drop(free[0])
    with contextlib.suppress(OSError):  # without one, attempts are started like any other
        _all.append(Loaded(kind, idle, first))


def is_known(kind: Kind) -> bool:
    """Whether one of this kind was started, whatever became of it."""
    return any(source.kind == kind for source in _all)


def is_loading(kind: Kind, library: str = "") -> bool:
    """Whether one of this kind will have loaded `library` within seconds, or all that it loads."""
    now = time.monotonic()
    return any(source.kind == kind and now - source.born < LOADING_SECONDS and source.lasts and not source.has(library) for source in _all)


def drop(source: Loaded) -> None:
    """End one, and what was forked from it."""
    _all.remove(source)
    source.end()


def reap() -> None:
    """Ask for those that have ended by themselves: until then the system keeps them as zombies. They stay known."""
    for source in _all:
        source.process.poll()


def end_all() -> None:
    """End all of them; their attempts have ended before."""
    for source in list(_all):
        drop(source)


def order_of(job: Path, folder: Path, stage: str, environment: Mapping[str, str], group: Path | None) -> Json:
    """What a process is told of the attempt that it is to fork."""
    return {"job": str(job), "folder": str(folder), "name": f"ckptd:{stage}", "environment": dict(environment),
            "group": None if group is None else str(group / "cgroup.procs")}  # fmt: skip
