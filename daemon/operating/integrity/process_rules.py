"""Invariants of processes: while the daemon lives, each open attempt has its child; otherwise nobody has one.

Called by `daemon.operating.integrity.fsck`. A child is known by its command line, `-m handlers STATE/jobs/…`, and by pid and start time.
"""

from __future__ import annotations

import psutil

from daemon.operating.integrity.scene import Scene
from daemon.system.lock import is_locked

_STRAY = "end that process; the next start of the daemon does it too"


def children_of(scene: Scene) -> dict[int, str]:
    """Pid → folder of the attempt, of every live child of this state directory."""
    prefix = f"{scene.paths.jobs.absolute()}/"
    found = {}
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            mine = "handlers" in line and next((word for word in line if word.startswith(prefix)), None)
            if mine and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = mine.rsplit("/", 1)[0]
        except psutil.Error:
            continue
    return found


def check_processes(scene: Scene) -> None:
    """No child without an open attempt and a daemon, and no open attempt of a living daemon without its child."""
    children = children_of(scene)
    attempts = {row["folder"]: row for row in scene.attempts}
    alive = not scene.quiescent and is_locked(scene.paths.lock)
    for pid, folder in children.items():
        if not alive or folder not in attempts:
            scene.find("stray-child", f"process {pid} works on an attempt that nobody waits for", _STRAY, path=folder)
    if not alive:
        return
    for folder, row in attempts.items():
        if folder not in children.values():
            what = f"attempt {row['number']} of {row['stage']} is open, but its process (pid {row['pid']}) is gone"
            remedy = "look at the daemon's log; a restart settles it"
            scene.find("attempt-without-child", what, remedy, path=folder, job=row["job"])
