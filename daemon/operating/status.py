"""What is going on, for people and programs: the journal and the running daemon's live file, read from outside.

Never blocks the daemon: the journal is opened read-only for the length of a few queries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daemon.contract.errors import Fault
from daemon.contract.messages import StageResult
from daemon.contract.version import __version__
from daemon.journal.database import reading
from daemon.system.lock import is_locked


def _live(state: Path) -> dict[str, Any]:
    try:
        value = json.loads((state / "live.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _sentence(text: str | None) -> str | None:
    return Fault.model_validate_json(text).sentence() if text else None


def _stage(row: Any, progress: dict[str, Any]) -> dict[str, Any]:
    live = progress.get(row["name"], {}) if row["state"] == "running" else {}
    result = StageResult.model_validate_json(row["result"]) if row["result"] else None
    return {
        "name": row["name"],
        "state": row["state"],
        "attempts": row["attempts"],
        "fraction": 1.0 if row["state"] == "succeeded" else live.get("fraction"),
        "message": live.get("message"),
        "seconds": result.seconds if result else live.get("seconds"),
        "error": _sentence(row["fault"]),
        "checks": {check.variant: str(check.verdict) for check in result.checks} if result else {},
    }


def snapshot(state: Path, *, limit: int = 50) -> dict[str, Any]:
    """The daemon, its open jobs and the latest `limit` ended ones, and the outbox. Keys are stable for programs.

    Raises ValueError where the journal can't be read.
    """
    running = is_locked(state / "lock")
    live = _live(state) if running else {}
    value: dict[str, Any] = {
        "version": __version__,
        "state_directory": str(state),
        "daemon": {"running": running, **{key: live.get(key) for key in ("pid", "started", "healthy", "configuration", "journal")}},
        "paused": None,
        "journal": None,
        "roots": live.get("roots", []),
        "incomplete": live.get("incomplete", []),
        "lost": [],
        "jobs": [],
        "counts": {},
        "outbox": {},
    }
    try:
        with reading(state / "journal.sqlite3") as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                return value
            if version >= 2:
                value["lost"] = [dict(row) for row in connection.execute(
                    "SELECT path, first_seen, last_seen, lived, at FROM lost ORDER BY id DESC LIMIT ?", (limit,)
                )]  # fmt: skip
            if version >= 3:
                said = {row[0]: (row[1], row[2]) for row in connection.execute("SELECT name, value, at FROM control")}
                value["paused"] = said["paused"][1] if "paused" in said else None
                value["journal"] = json.loads(said["journal-rebuilt"][0]) if "journal-rebuilt" in said else None
            value["counts"] = {row[0]: row[1] for row in connection.execute("SELECT state, count(*) FROM job GROUP BY state")}
            value["outbox"] = {row[0]: row[1] for row in connection.execute("SELECT state, count(*) FROM outbox GROUP BY state")}
            rows = connection.execute(
                "SELECT * FROM (SELECT * FROM job ORDER BY state IN ('running', 'pending') DESC, created DESC LIMIT ?)"
                " ORDER BY created, step",
                (limit,),
            ).fetchall()
            for row in rows:
                stages = connection.execute("SELECT * FROM stage WHERE job = ? ORDER BY position", (row["id"],)).fetchall()
                value["jobs"].append(_job(row, stages, live))
    except FileNotFoundError:
        pass
    return value


def find(state: Path, wanted: str, *, attempts: bool = False) -> list[dict[str, Any]]:
    """The jobs whose id is `wanted`, else those whose id begins with it, at most two; with their attempts if asked."""
    live = _live(state) if is_locked(state / "lock") else {}
    try:
        with reading(state / "journal.sqlite3") as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                return []
            rows = connection.execute("SELECT * FROM job WHERE id = ?", (wanted,)).fetchall() or connection.execute(
                "SELECT * FROM job WHERE substr(id, 1, ?) = ? LIMIT 2", (len(wanted), wanted)
            ).fetchall()  # fmt: skip
            found = []
            for row in rows:
                stages = connection.execute("SELECT * FROM stage WHERE job = ? ORDER BY position", (row["id"],)).fetchall()
                found.append(_job(row, stages, live))
                if attempts:
                    tried = connection.execute("SELECT * FROM attempt WHERE job = ? ORDER BY started, number", (row["id"],))
                    found[-1]["attempts"] = [_attempt(one) for one in tried]
            return found
    except FileNotFoundError:
        return []


def _attempt(row: Any) -> dict[str, Any]:
    return {
        **{key: row[key] for key in ("stage", "number", "strategy", "outcome", "estimate", "started", "ended")},
        "error": _sentence(row["fault"]),
        "job_file": str(Path(row["folder"]) / "job.json"),
        "log": str(Path(row["folder"]) / "log.txt"),
    }


def _job(row: Any, stages: list[Any], live: dict[str, Any]) -> dict[str, Any]:
    progress = (live.get("progress") or {}).get(row["id"], {})
    listed = [_stage(stage, progress) for stage in stages]
    artifacts = {variant: verdict for stage in listed for variant, verdict in stage.pop("checks").items()}
    errors = [stage["error"] for stage in listed if stage["state"] == "failed" and stage["error"]]
    checkpoint, old = json.loads(row["checkpoint"]), "reason" not in row.keys()  # noqa: SIM118  (a row has no `in`)
    reason = None if old else row["reason"]
    return {
        "id": row["id"],
        "run": row["run"],
        "step": row["step"],
        "state": row["state"],
        "created": row["created"],
        "started": row["started"],
        "ended": row["ended"],
        "checkpoint": checkpoint["path"],
        "method": checkpoint["method"],
        "base": row["base"] or checkpoint.get("base_name"),
        **{key: checkpoint["metadata"].get(key) for key in ("loss", "epoch", "rank", "best_metric", "evaluation")},
        "target": row["target"] + (".failed" if row["state"] == "failed" else ""),
        "waiting_for": (live.get("waiting") or {}).get(row["id"]),
        "error": reason or (errors[0] if errors else None),
        "paused": bool(row["paused"]) if "paused" in row.keys() else False,  # noqa: SIM118
        "warnings": [] if old else json.loads(row["warnings"]),
        "artifacts": artifacts,
        "stages": listed,
    }
