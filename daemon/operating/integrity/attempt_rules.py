"""Invariants of attempts: while the daemon runs, each open attempt has something that works on it; otherwise nothing works on any attempt.

Called by `daemon.operating.integrity.fsck`. The executor says what is running.
"""

from __future__ import annotations

from daemon.operating.integrity.scene import Scene
from daemon.running.executor import Executor
from daemon.system.lock import is_locked

_STRAY = "end it; the next start of the daemon also does this"


def check_attempts(scene: Scene, executor: Executor) -> None:
    """Nothing is at work without an open attempt and a daemon, and no open attempt of a living daemon without something at work."""
    at_work = executor.at_work(scene.paths.jobs)
    attempts = {row["folder"]: row for row in scene.attempts}
    alive = not scene.quiescent and is_locked(scene.paths.lock)
    for name, folder in at_work.items():
        if not alive or str(folder) not in attempts:
            scene.find("stray-child", f"{name} works on an attempt that no job waits for", _STRAY, path=folder)
    if not alive:
        return
    for path, row in attempts.items():
        if path not in map(str, at_work.values()):
            what = f"attempt {row['number']} of {row['stage']} is open, but the process that ran it ({row['executor_id']}) is gone"
            remedy = "check the daemon's log; a restart closes the attempt"
            scene.find("attempt-without-child", what, remedy, path=path, job=row["job"])
