"""A journal with thousands of exports: one that was entered by the journal's own code, and its rows again and again under other names."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.jobs.messages import ArtifactCheck, CheckpointRef, Outcome, StageResult, Verdict
from daemon.contract.jobs.plan import stage_names
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal

RUNS = 40
FIRST = "first"
_RESULT = StageResult(outcome=Outcome.SUCCEEDED, seconds=12.5)


def fill(state: Path, output: Path, jobs: int, *, waiting: int = 0) -> None:
    """Write the journal of a state directory. `waiting`: so many of the jobs, the newest, have not begun; the others succeeded."""
    settings = Settings.model_validate({"limits": {"disk_reserve": 0}, "output": {"directory": output}})
    paths = prepare(state, output)
    journal = Journal(paths.journal)
    seen = CheckpointRef(
        root="/runs", run="run-00", step=1, path="/runs/run-00/checkpoint-1", layout="trainer", digest="0" * 64, method="lora",
        metadata={"loss": 1.0, "epoch": 0.5, "history": [[step, 1.25] for step in range(50)]},
    )  # fmt: skip
    names = stage_names(settings.work, seen.layout)
    journal.jobs.add(NewJob(FIRST, seen, settings.work, names, paths.pins / FIRST, output / "run-00" / "step", "f"))
    journal.close()
    checked = {variant: ArtifactCheck(variant=variant, verdict=Verdict.PASSED) for variant in settings.variants}
    with closing(sqlite3.connect(paths.journal)) as connection, connection:
        connection.create_function("result_of", 1, lambda stage: _result(stage, checked))
        connection.create_function("identity_of", 1, lambda number: seen.model_copy(update=_named(number)).identity)
        _multiply(connection, jobs, jobs - waiting)
        connection.execute("DELETE FROM stage WHERE job = ?", (FIRST,))
        connection.execute("DELETE FROM job WHERE id = ?", (FIRST,))


def _named(number: int) -> dict[str, object]:
    return {"run": f"run-{number % RUNS:02}", "step": number, "digest": f"{number:064x}"}


def _result(stage: str, checked: dict[str, ArtifactCheck]) -> str:
    check = checked.get("pytorch" if stage == "merged" else stage.removeprefix("check-")) if stage.startswith(("check", "merged")) else None
    return _RESULT.model_copy(update={"checks": (check,) if check else ()}).model_dump_json()


def _multiply(connection: sqlite3.Connection, jobs: int, ended: int) -> None:
    """Make `jobs` of the one; the first `ended` of them have succeeded, each stage with one attempt."""
    time = "strftime('%Y-%m-%dT%H:%M:%f+00:00', '2026-01-01', printf('+%d minutes', n))"
    done = f"CASE WHEN n <= {ended} THEN"
    job = {
        "id": "printf('run-%02d-%d-%08x', n % :runs, n, n)", "identity": "identity_of(n)", "run": "printf('run-%02d', n % :runs)",
        "step": "n", "created": time, "target": "printf('%s-%d', target, n)", "started": f"{done} {time} END",
        "ended": f"{done} {time} END",
        "state": f"{done} 'succeeded' ELSE 'pending' END",
        "checkpoint": "json_set(checkpoint, '$.step', n, '$.run', printf('run-%02d', n % :runs), '$.digest', printf('%064x', n))",
    }  # fmt: skip
    stage = {
        "job": job["id"], "state": f"{done} 'succeeded' ELSE state END", "attempts": f"{done} 1 ELSE 0 END",
        "result": f"{done} result_of(name) END",
    }  # fmt: skip
    for table, new, key in (("job", job, "id"), ("stage", stage, "job")):
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(
            f"WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :jobs) INSERT INTO {table}"
            f" ({', '.join(names)}) SELECT {', '.join(new.get(name, name) for name in names)} FROM number, {table} WHERE {key} = :first",
            {"jobs": jobs, "runs": RUNS, "first": FIRST},
        )
    connection.execute(
        "INSERT INTO attempt (job, stage, number, strategy, outcome, folder, staging, started, ended) SELECT job, stage.name, 1, '',"
        " 'succeeded', '/nowhere', '/nowhere', started, ended FROM stage JOIN job ON job.id = job WHERE stage.state = 'succeeded'"
    )
