"""Keeps track of all processes of one attempt, so that each of them ends with it.

Used by `worker`, one `Enclosure` an attempt. A process belongs to an attempt when it is in the attempt's control group
(where there is one), descends from the attempt's first process, is in its session, or carries the attempt's mark in its
environment. A process that leaves all of these on purpose still becomes the daemon's child once its parents are gone, if
`adopt_orphans` was called, and is ended when no other attempt could own it.

Limits: without a control group a fork bomb is seen at the next look, up to a second after it began; RLIMIT_NPROC would not
help, since it doesn't bind root and counts every process of a user, the training's too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from daemon.running.workers import cgroup
from daemon.system.processes import procfs

MARK = "CKPTD_ATTEMPT"
_PR_SET_CHILD_SUBREAPER = 36
_THREADS = 32
"""Tasks that a control group allows for each allowed process: its limit counts threads."""
_ROUNDS = 20
_ENTER = 'echo 0 >"$0" || exit 71; exec "$@"'

_adopting = False
_root: Path | None = None
_open: dict[int, Enclosure] = {}
"""The attempts that run, by the id of their first process."""
_kept: set[int] = set()
"""Processes of this program's own that are no attempt's."""


def adopt_orphans() -> bool:
    """Let orphans of this process's descendants become its children, and take a control group where one is handed over.

    Must be called once at the start of a program that runs attempts; whether a control group is used. From then on every
    child of the program that leads a session of its own must be an attempt's.
    """
    global _adopting, _root
    _adopting = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    _root = cgroup.delegated()
    if _root is not None:
        cgroup.enable(_root)
    return _root is not None


class Enclosure:
    """The processes of one attempt. `wrap` its command, start that, `hold` its process; in the end `sweep`, then `close`."""

    def __init__(self, mark: str, memory: int, processes: int) -> None:
        self._mark = mark
        self._group = cgroup.make(_root, os.urandom(4).hex()) if _root is not None else None
        if self._group is not None:
            self._group.limit(memory, processes * _THREADS)
        self._leader = 0
        self._killed: dict[int, float] = {}

    @property
    def group(self) -> Path | None:
        """Its control group, where there is one."""
        return None if self._group is None else self._group.path

    @property
    def environment(self) -> dict[str, str]:
        """What the first process's environment must hold."""
        return {MARK: self._mark}

    def wrap(self, command: Iterable[str]) -> list[str]:
        """The command that starts `command` inside: it enters the group before it loads anything."""
        if self._group is None:
            return list(command)
        return ["/bin/sh", "-c", _ENTER, str(self._group.path / "cgroup.procs"), *command]

    def hold(self, leader: int) -> None:
        """The first process has started; it must lead a session."""
        self._leader = leader
        _open[leader] = self

    def members(self) -> set[int]:
        """The processes of the attempt that live, the first one among them."""
        table = procfs.snapshot()
        roots = self._roots(table) | (self._group.processes() if self._group is not None else set())
        if self._group is None and not _adopting:
            roots |= {pid for pid in table if procfs.variable(pid, MARK) == self._mark}
        return self._living(roots, table)

    def inside(self) -> set[int]:
        """As `members`, but as cheaply as the box allows: for looks while the attempt runs."""
        if self._group is not None:
            return self._group.processes()
        table = procfs.snapshot()
        return self._living(self._roots(table), table)

    def _roots(self, table: dict[int, procfs.ProcessInfo]) -> set[int]:
        return {pid for pid, known in table.items() if known.session == self._leader} | self._adopted(table) | {self._leader}

    def _living(self, roots: set[int], table: dict[int, procfs.ProcessInfo]) -> set[int]:
        return {pid for pid in procfs.below(roots, table) if not table[pid].dead}

    def _adopted(self, table: dict[int, procfs.ProcessInfo]) -> set[int]:
        """Orphans that this process adopted and that are, or can only be, the attempt's."""
        return {pid for pid in _orphans(table) if self._owns(pid)}

    def _owns(self, pid: int) -> bool:
        mark = procfs.variable(pid, MARK)
        return mark == self._mark or (mark is None and set(_open) <= {self._leader})

    def memory(self, pids: Iterable[int], limit: int) -> int:
        """Bytes that the processes hold. Looks exactly only where a quick look says that it is more than `limit`."""
        held = self._group.memory() if self._group is not None else None
        if held is not None:
            return held
        known = list(pids)
        quick = procfs.memory(known)
        return quick if not limit or quick <= limit else procfs.exact_memory(known)

    def events(self) -> dict[str, int]:
        """What the kernel did to the group: see `cgroup.Group.events`; all 0 without one."""
        return {"oom": 0, "oom_kill": 0, "forks": 0, **(self._group.events() if self._group is not None else {})}

    def ask(self) -> None:
        """Ask all of it to end, the first process first: it must not take the others' end for a fault of theirs.

        What is stopped is woken, since it would not hear.
        """
        send([self._leader], signal.SIGTERM)
        others = self.members() - {self._leader}
        send(others, signal.SIGTERM)
        send([self._leader, *others], signal.SIGCONT)

    def kill(self, seconds: float = 0.05) -> bool:
        """Kill all of it, new ones too, for up to `seconds`; whether nothing lives any more.

        Everything is stopped first: a killed process would be replaced by what another one forks meanwhile.
        """
        if self._group is not None:
            self._group.kill()
        deadline = time.monotonic() + seconds
        while alive := self.members() | living(self._killed):
            for _ in range(_ROUNDS):
                send(alive, signal.SIGSTOP)
                more = self.members() - alive
                if not more:
                    break
                alive |= more
            self._killed.update(name(alive))
            send(alive, signal.SIGKILL)
            time.sleep(0.002)
            if time.monotonic() > deadline:
                return False
        return True

    def sweep(self, seconds: float = 0.05) -> bool:
        """`kill`, and take the zombies away; to be called again while it gives False."""
        gone = self.kill(seconds)
        reap()
        return gone

    def close(self) -> None:
        """The attempt is over: forget it. Its group is removed, unless something in it can't be killed."""
        _open.pop(self._leader, None)
        if self._group is not None:
            self._group.remove()


def keep(pid: int) -> None:
    """This child leads a session of its own, and belongs to no attempt."""
    _kept.add(pid)


def let_go(pid: int) -> None:
    """It has ended."""
    _kept.discard(pid)


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to processes; those that are gone already are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def name(pids: Iterable[int]) -> dict[int, float]:
    """When each of these processes started: with its id that names it for good."""
    return {pid: known.started for pid in pids if (known := procfs.entry(pid)) is not None}


def living(named: Mapping[int, float]) -> set[int]:
    """Those of the processes that `name` named which still live. One that is dying has no environment and may have no parent."""
    entries = {pid: procfs.entry(pid) for pid in named}
    return {pid for pid, known in entries.items() if known is not None and known.started == named[pid] and not known.dead}


def _orphans(table: dict[int, procfs.ProcessInfo]) -> set[int]:
    """Children of this process that were born to others: none of its own leads or joins a foreign session but attempts' first ones."""
    if not _adopting:
        return set()
    me, own = os.getpid(), os.getsid(0)
    return {pid for pid, known in table.items() if known.parent == me and known.session != own and pid not in _open and pid not in _kept}


def reap() -> None:
    """Take adopted processes that have ended out of the process table. The attempts' first ones are left to who started them."""
    table = procfs.snapshot() if _adopting else {}
    for pid in _orphans(table):
        if table[pid].dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_marked(mark: str, seconds: float = 10.0) -> int:
    """Kill every process that carries the mark of an attempt of a daemon that is no more; give how many there were.

    Returns when they are gone, or after `seconds` if the kernel holds one of them.
    """
    killed: dict[int, float] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pids = {pid for pid, known in procfs.snapshot().items() if not known.dead and procfs.variable(pid, MARK) == mark}
        killed.update(name(pids))
        if not pids and not living(killed):
            break
        send(pids, signal.SIGKILL)
        time.sleep(0.005)
    return len(killed)


def kill_session(leader: int) -> None:
    """Kill a process that leads a session, all of the session, and what descends from them."""
    table = procfs.snapshot()
    send(procfs.below({pid for pid, known in table.items() if leader in (pid, known.session)}, table), signal.SIGKILL)
