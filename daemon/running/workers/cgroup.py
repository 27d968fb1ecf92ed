"""Control groups (version 2): the kernel's limits around the processes of one attempt.

Used by `containment` where the daemon's own group has been handed over to it: by systemd (`Delegate=yes`), by a container
or by its user's session. Where controllers are missing a group still names its processes and kills them at once.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CONTROLLERS = ("memory", "pids")
_DELEGATED = ("user.delegate", "trusted.delegate")
_PREFIX = "ckptd-"


@dataclass(frozen=True)
class Group:
    """One group below a delegated one."""

    path: Path

    def processes(self) -> set[int]:
        """Ids of all processes in it and in groups that they made below it."""
        pids: set[int] = set()
        for folder, _, _ in os.walk(self.path):
            with contextlib.suppress(OSError):
                pids |= {int(row) for row in Path(folder, "cgroup.procs").read_text(encoding="utf-8").split()}
        return pids

    def limit(self, memory: int, tasks: int) -> bool:
        """Bound its memory (bytes, 0 none) and its tasks, threads included; whether the memory is bounded by the kernel now."""
        self._write("pids.max", str(tasks))
        if not memory:
            return False
        self._write("memory.oom.group", "1")  # an attempt that has lost one of its processes is not worth finishing
        return self._write("memory.max", str(memory))

    def kill(self) -> bool:
        """Kill all of it at once, whatever it forks meanwhile; False on kernels before 5.14, which can't."""
        return self._write("cgroup.kill", "1")

    def memory(self) -> int | None:
        """Bytes of anonymous and shared memory and of swap in it; None without the memory controller."""
        table = self._table("memory.stat")
        if not table:
            return None
        with contextlib.suppress(OSError, ValueError):
            return table.get("anon", 0) + table.get("shmem", 0) + int((self.path / "memory.swap.current").read_text(encoding="utf-8"))
        return table.get("anon", 0) + table.get("shmem", 0)

    def events(self) -> Mapping[str, int]:
        """`oom`: times that its own limit was reached; `oom_kill`: processes in it killed for memory, by any limit or the box;
        `forks`: forks refused by its limit of tasks."""
        return {**self._table("memory.events"), "forks": self._table("pids.events").get("max", 0)}

    def remove(self) -> bool:
        """Remove it and the groups below; False where it still holds a process."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not self.path.exists()

    def _table(self, name: str) -> dict[str, int]:
        try:
            rows = (self.path / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            return {}
        return {row.split()[0]: int(row.split()[1]) for row in rows if len(row.split()) == 2}

    def _write(self, name: str, value: str) -> bool:
        try:
            # never makes a file, which would hide that there is no such control
            with open(self.path / name, "r+", encoding="utf-8") as stream:
                stream.write(value)
            return True
        except OSError:
            return False


def make(root: Path, name: str) -> Group | None:
    """A new group for an attempt below `root`; None where the kernel refuses."""
    path = root / f"{_PREFIX}{os.getpid()}-{name}"
    try:
        path.mkdir()
    except OSError:
        return None
    return Group(path)


def delegated(own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/proc/self/mountinfo")) -> Path | None:
    """The group below which this process may make its own; None where nobody has handed one over."""
    try:
        row = next(row for row in own.read_text(encoding="utf-8").splitlines() if row.startswith("0::"))
        mount = next(row.split() for row in mounts.read_text(encoding="utf-8").splitlines() if " - cgroup2 " in row)
    except (OSError, StopIteration):
        return None
    top = Path(mount[4])
    inside = os.path.relpath(row[3:], mount[3])
    if inside.startswith(".."):
        return None
    path = top if inside == "." else top / inside
    return path if _is_ours(path) else None


def _is_ours(path: Path) -> bool:
    if not os.access(path, os.W_OK) or not os.access(path / "cgroup.procs", os.W_OK):
        return False
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    # The top of a container's own view has a type, the box's true root has none: that one belongs to its init system.
    return os.path.ismount(path) and (path / "cgroup.type").exists()


def enable(root: Path) -> None:
    """Let groups below `root` bound memory and tasks, as far as the kernel allows.

    A group that has processes of its own can't hand controllers down, so this process moves into one of its own first.
    """
    sweep(root)
    if _hand_down(root):
        return
    own = root / f"{_PREFIX}daemon-{os.getpid()}"
    with contextlib.suppress(OSError):
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    _hand_down(root)


def _hand_down(root: Path) -> bool:
    control = root / "cgroup.subtree_control"
    try:
        there = set((root / "cgroup.controllers").read_text(encoding="utf-8").split())
        for name in _CONTROLLERS:
            if name in there and name not in control.read_text(encoding="utf-8").split():
                control.write_text(f"+{name}", encoding="utf-8")
    except OSError:
        return False
    return True


def sweep(root: Path, seconds: float = 5.0) -> list[str]:
    """Kill and remove the groups that daemons which are no more left below `root`; give their names."""
    gone = []
    for path in sorted(root.glob(f"{_PREFIX}*")):
        pid = path.name.removeprefix(_PREFIX).removeprefix("daemon-").split("-")[0]
        if not pid.isdigit() or Path("/proc", pid).exists():
            continue
        group = Group(path)
        group.kill()
        deadline = time.monotonic() + seconds
        while not group.remove() and time.monotonic() < deadline:
            time.sleep(0.01)
        gone.append(path.name)
    return gone
