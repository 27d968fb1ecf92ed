"""What /proc says about processes: their tree, their sessions, the memory that they hold.

Called by `daemon.running.workers` while a child runs, at most once a second and child, and by `rivals`: one look reads a short line of
every process of the box. Linux only. Everything here may be out of date when it returns, so callers look again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from daemon.contract.faults.oom import oom_kills as oom_kills
from daemon.contract.light import dataclass

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_OWN_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
_SHARED_OUT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a snapshot."""

    name: str
    user: int
    parent: int
    session: int
    state: str
    started: float
    """Seconds after boot: unlike a wall-clock time it stays the same when the clock is set."""
    seconds: float
    """CPU time since then."""

    @property
    def dead(self) -> bool:
        """A zombie, or on the way out: it holds nothing any more."""
        return self.state in "ZX"


def entry(pid: int) -> ProcessInfo | None:
    """The process `pid`, None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as stream:
            text, user = stream.read(4096), os.fstat(stream.fileno()).st_uid
    except OSError:
        return None
    begin, end = text.find(b"("), text.rfind(b")")  # the name may hold spaces and parentheses
    fields = text[end + 2 :].split()
    if len(fields) < 20:
        return None
    name, used = text[begin + 1 : end].decode(errors="replace"), int(fields[11]) + int(fields[12])
    return ProcessInfo(name, user, int(fields[1]), int(fields[3]), fields[0].decode(), int(fields[19]) / _TICKS, used / _TICKS)


def exit_code(pid: int) -> int | None:
    """Exit code, or negative number of a signal, of a zombie; None where there is none, or the kernel does not tell us."""
    try:
        status = int(Path(f"/proc/{pid}/stat").read_bytes().split()[-1])
    except (OSError, ValueError, IndexError):
        return None
    return os.waitstatus_to_exitcode(status) if (known := entry(pid)) is not None and known.dead else None


def snapshot(most: int | None = None) -> dict[int, ProcessInfo]:
    """All processes by id, or the `most` with the highest ids."""
    pids = sorted((int(name) for name in os.listdir(PROC) if name.isdigit()), reverse=True)
    return {pid: known for pid in pids[:most] if (known := entry(pid)) is not None}


def below(roots: Iterable[int], table: Mapping[int, ProcessInfo]) -> set[int]:
    """`roots` and everything that descends from them."""
    children: dict[int, list[int]] = {}
    for pid, known in table.items():
        children.setdefault(known.parent, []).append(pid)
    pids: set[int] = set()
    queue = [root for root in roots if root in table]
    while queue:
        pid = queue.pop()
        if pid not in pids:
            pids.add(pid)
            queue.extend(children.get(pid, ()))
    return pids


def variable(pid: int, name: str) -> str | None:
    """The value that the environment variable `name` had when the process started its program; None where it can't be read."""
    try:
        block = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    wanted = os.fsencode(name) + b"="
    return next((os.fsdecode(row[len(wanted) :]) for row in block.split(b"\0") if row.startswith(wanted)), None)


def _sum(path: str, keys: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb", buffering=0) as stream:
            rows = stream.read(1 << 16).splitlines()
    except OSError:
        return 0  # gone, or not ours to read
    return sum(int(row.split()[1]) for row in rows if row.startswith(keys)) * 1024


def memory(pids: Iterable[int]) -> int:
    """Bytes of anonymous and shared memory and of swap that processes hold, pages that they share counted for each of them.

    Mapped files (weights are read that way) are left out: the kernel drops their pages when it needs room, so they take
    no box down, though they count as resident.
    """
    return sum(_sum(f"/proc/{pid}/status", _OWN_MEMORY) for pid in pids)


def exact_memory(pids: Iterable[int]) -> int:
    """As `memory`, but a page that several processes share is counted once. Walks page tables: tens of milliseconds."""
    return sum(_sum(f"/proc/{pid}/smaps_rollup", _SHARED_OUT) or memory([pid]) for pid in pids)


def cpu_times(pids: Iterable[int]) -> dict[int, tuple[float, float, bool]]:
    """Thread → seconds of CPU time that it had, seconds that it waited for a processor, and whether it is ready to run now.

    Threads of all these processes. {} where the kernel does not count that.
    """
    times: dict[int, tuple[float, float, bool]] = {}
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # gone
        for name in threads:
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran, waited, _ = Path(f"/proc/{pid}/task/{name}/schedstat").read_bytes().split()
                stat = Path(f"/proc/{pid}/task/{name}/stat").read_bytes()
                times[int(name)] = int(ran) / 1e9, int(waited) / 1e9, stat[stat.rfind(b")") + 2 :][:1] == b"R"
    return times
