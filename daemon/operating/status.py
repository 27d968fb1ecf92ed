"""The status for users and programs: the journal and the running daemon's live file, read from outside.

Never blocks the daemon: the journal is opened read-only for the length of a few queries.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from daemon.config.paths import JOB_FILE, LOG_FILE, StatePaths
from daemon.contract.version import __version__
from daemon.journal.database import reading
from daemon.journal.overview import JobView, Overview, attempts_of, jobs_named, overview
from daemon.journal.rows import AttemptRow, StageRow
from daemon.publishing.closing import target_of
from daemon.system.lock import is_locked


def _live(paths: StatePaths) -> dict[str, Any]:
    try:
        value = json.loads(paths.live.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _stage(stage: StageRow, progress: dict[str, Any]) -> dict[str, Any]:
    live = progress.get(stage.name, {}) if stage.state == "running" else {}
    return {
        "name": stage.name,
        "state": stage.state,
        "attempts": stage.attempts,
        "fraction": 1.0 if stage.state == "succeeded" else live.get("fraction"),
        "message": live.get("message"),
        "seconds": stage.result.seconds if stage.result else live.get("seconds"),
        "error": stage.fault.sentence() if stage.fault else None,
    }


def snapshot(state: Path, *, limit: int = 50) -> dict[str, Any]:
    """The daemon, its open jobs and the latest `limit` ended ones, and the outbox. Keys are stable for programs.

    Raises ValueError where the journal can't be read.
    """
    paths = StatePaths(state)
    running = is_locked(paths.lock)
    live = _live(paths) if running else {}
    try:
        with reading(paths.journal) as connection:
            seen = overview(connection, limit)
    except FileNotFoundError:
        seen = Overview()
    return {
        "version": __version__,
        "state_directory": str(state),
        "daemon": {"running": running, **{key: live.get(key) for key in ("pid", "started", "healthy", "configuration", "journal")}},
        "paused": seen.paused_since,
        "journal": seen.rebuilt,
        "roots": live.get("roots", []),
        "incomplete": live.get("incomplete", []),
        "lost": [asdict(row) for row in seen.lost],
        "jobs": [_job(view, live) for view in seen.jobs],
        "counts": seen.counts,
        "outbox": seen.outbox,
    }


def find(state: Path, wanted: str, *, attempts: bool = False) -> list[dict[str, Any]]:
    """The jobs whose id is `wanted`, else those whose id begins with it, at most two; with their attempts if asked."""
    paths = StatePaths(state)
    live = _live(paths) if is_locked(paths.lock) else {}
    try:
        with reading(paths.journal) as connection:
            found = []
            for view in jobs_named(connection, wanted):
                found.append(_job(view, live))
                if attempts:
                    found[-1]["attempts"] = [_attempt(one) for one in attempts_of(connection, view.job.id)]
            return found
    except FileNotFoundError:
        return []


def _attempt(row: AttemptRow) -> dict[str, Any]:
    return {
        **{key: getattr(row, key) for key in ("stage", "number", "strategy", "outcome", "estimate", "started", "ended")},
        "error": row.fault.sentence() if row.fault else None,
        "job_file": str(row.folder / JOB_FILE),
        "log": str(row.folder / LOG_FILE),
    }


def _job(view: JobView, live: dict[str, Any]) -> dict[str, Any]:
    job, checkpoint = view.job, view.job.checkpoint
    progress = (live.get("progress") or {}).get(job.id, {})
    checks = [check for stage in view.stages if stage.result for check in stage.result.checks]
    listed = [_stage(stage, progress) for stage in view.stages]
    errors = [stage["error"] for stage in listed if stage["state"] == "failed" and stage["error"]]
    return {
        "id": job.id,
        "run": checkpoint.run,
        "step": checkpoint.step,
        "state": job.state,
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "checkpoint": checkpoint.path,
        "method": checkpoint.method,
        "base": str(job.base) if job.base else checkpoint.base_name,
        **{key: checkpoint.metadata.get(key) for key in ("loss", "epoch", "rank", "best_metric", "evaluation")},
        "target": str(target_of(job, job.state)),
        "waiting_for": (live.get("waiting") or {}).get(job.id),
        "error": job.reason or (errors[0] if errors else None),
        "paused": job.paused,
        "warnings": list(job.warnings),
        "artifacts": {check.variant: str(check.verdict) for check in checks},
        "stages": listed,
    }
