"""Which processes have the CPU time that a child could use: what the others of the box used between two looks at /proc.

A look reads a line of each process. It is made only while a child is starved, by the runner, every `EVERY_SECONDS` at most. Of other
namespaces, and where /proc is mounted with `hidepid`, nothing is seen.
"""

from __future__ import annotations

import os
from collections import defaultdict

from daemon.contract.light import dataclass
from daemon.system.processes.procfs import ProcessInfo, below, snapshot

EVERY_SECONDS = 15.0
MOST_PROCESSES = 4000
"""Of one look, the newest: a share of a box with more of them is not worth the time."""
LEAST_CORES = 0.1
"""What a process must use to be named."""
NAMED = 3
OURS = "other stages of ckptd"


@dataclass(frozen=True)
class Rival:
    """What other processes of one name and one user use, or other stages of ckptd together."""

    name: str
    """As the system names the process, for example `python3`: the first 15 characters."""
    user: str
    """The user's name, or its number where it has none."""
    pid: int
    """Id of the process that uses most."""
    processes: int
    """Number of processes."""
    cores: float
    """CPU time that they used over the last seconds, in cores."""

    def __str__(self) -> str:
        if self.name == OURS:
            return f"{OURS} {100 * self.cores:.0f} %"
        which = f"pid {self.pid}" if self.processes == 1 else f"{self.processes} processes, most by pid {self.pid}"
        return f"{self.name} (user {self.user}, {which}) {100 * self.cores:.0f} %"


class Rivals:
    """The processes of the box, as of the last two looks."""

    def __init__(self) -> None:
        self._before: dict[int, ProcessInfo] = {}
        self._at: float | None = None
        self.seen: tuple[Rival, ...] = ()
        """Those that use most, the first first; nothing before the second look. May be asked from any thread."""

    def look(self, now: float, starved: float) -> None:
        """Take in what all processes used up to `now`, by the monotonic clock, where the last look is long enough ago.

        `starved`: cores that the children get which are starved; what the others of this process get is named as `OURS`.
        """
        since = self._at
        if since is not None and now - since < EVERY_SECONDS:
            return
        before, self._before, self._at = self._before, snapshot(MOST_PROCESSES), now
        recent = since is not None and now - since < 2 * EVERY_SECONDS
        self.seen = _most(before, self._before, now - since, starved) if recent and since is not None else ()

    def forget(self) -> None:
        """No child is starved any more."""
        self._before, self._at, self.seen = {}, None, ()


def _most(before: dict[int, ProcessInfo], now: dict[int, ProcessInfo], passed: float, starved: float) -> tuple[Rival, ...]:
    from daemon.system.filesystems.access import user_name  # what shows a Rival has no need of it

    used = {
        pid: (process.seconds - (earlier.seconds if (earlier := before.get(pid)) and earlier.started == process.started else 0.0)) / passed
        for pid, process in now.items()
    }  # fmt: skip
    ours = below([os.getpid()], now)
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for pid in used.keys() - ours:
        if used[pid] > 0:
            groups[now[pid].name, user_name(now[pid].user)].append(pid)
    rivals = [
        Rival(name, user, max(pids, key=lambda pid: used[pid]), len(pids), round(sum(used[pid] for pid in pids), 2))
        for (name, user), pids in groups.items()
    ]  # fmt: skip
    mine = round(sum(used[pid] for pid in ours) - starved, 2)
    rivals.append(Rival(OURS, user_name(), os.getpid(), len(ours), mine))
    return tuple(sorted((rival for rival in rivals if rival.cores >= LEAST_CORES), key=lambda rival: -rival.cores)[:NAMED])
