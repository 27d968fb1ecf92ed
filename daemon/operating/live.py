"""What only the running daemon knows, for `ckptd status`: progress, waits, roots. Rewritten often, never needed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from daemon.config.settings import Settings
from daemon.contract.files import write_atomic
from daemon.journal.rows import now
from daemon.running.runner import Runner
from daemon.watching.watcher import Watcher

log = structlog.get_logger("daemon")


@dataclass(frozen=True)
class ConfigLoad:
    """When the configuration was last read, and what was wrong with it then: the one before counts in that case."""

    at: str
    problem: str | None = None


def live_view(
    settings: Settings, watcher: Watcher, runner: Runner, *, started: str, healthy: bool, loaded: ConfigLoad, care: dict[str, Any]
) -> dict[str, Any]:
    """The live file's content."""
    progress: dict[str, dict[str, Any]] = {}
    for (job, stage), running in dict(runner.children.running).items():
        said = running.attempt.progress
        progress.setdefault(job, {})[stage] = {
            "attempt": running.id.number, "fraction": said.fraction, "message": said.message,
            "seconds": round(time.monotonic() - running.began, 1), "id": running.attempt.id, "memory": running.attempt.memory,
        }  # fmt: skip
    return {
        "pid": os.getpid(),
        "started": started,
        "time": now(),
        "healthy": healthy,
        "configuration": asdict(loaded),
        "journal": care,
        "roots": [
            {"path": str(root), "backend": watcher.backend_of(root), "exists": root.is_dir()} for root in settings.watch.roots
        ],
        "incomplete": [
            {"path": str(path), "missing": list(entry.missing), "seconds": round(time.monotonic() - entry.since)}
            for path, entry in dict(watcher.tracker.incomplete).items()
        ],
        "progress": progress,
        "waiting": {job: waiting.fault.sentence() for job, waiting in dict(runner.waits.of).items()},
    }  # fmt: skip


def write_live(file: Path, value: dict[str, Any]) -> None:
    """Replace the live file; where that fails, say so and go on."""
    try:
        write_atomic(file, json.dumps(value), durable=False)
    except OSError as error:
        log.warning("cannot write the live file; work goes on", error=str(error))
