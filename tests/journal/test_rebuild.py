"""What the disk tells of jobs when the journal is gone: nothing is exported twice, nothing that is finished is repeated."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.config.places.paths import Paths, prepare
from daemon.contract.disk.files import FileEntry
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import CheckpointRef, Outcome, StageContext, StageResult
from daemon.journal.attempts import Intent
from daemon.journal.entries import JobEntry, write_entry
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId
from daemon.operating.integrity.maintenance import open_journal, rebuilt_state
from daemon.operating.integrity.rebuild import Rebuilt, rebuild
from daemon.watching.taking.intake import Intake
from tests.journal.entries import WORK, reference
from tests.selection.conftest import Desks
from tests.service import Service, listing

FAULT = Fault(code="c", operation="o", cause="because", remedy="r")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return prepare(tmp_path / "state", tmp_path / "exports")


def target_of(seen: CheckpointRef) -> Path:
    return Path("/exports") / seen.run / str(seen.step)


def pin(paths: Paths, job: str) -> Path:
    folder = paths.pins / job
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    return folder


def attempt(paths: Paths, job: str, stage: str, number: int, result: StageResult | None, *, step: int = 4) -> Path:
    """An attempt's job file, and its result if it gave one; gives its staging folder, with `weights` in it."""
    folder, staging = paths.attempt(job, stage, number), paths.staging / job / f"{stage}.{number}"
    folder.mkdir(parents=True)
    context = StageContext(
        job=job, stage=stage, attempt=number, checkpoint=reference(step, digest=job), pin=str(paths.pins / job), base="/base",
        staging=str(staging), result=str(folder / "result.json"), temporary=str(folder / "tmp"), cache=str(paths.cache), work=WORK,
    )  # fmt: skip
    (folder / "job.json").write_text(context.model_dump_json())
    if result:
        (folder / "result.json").write_text(result.model_dump_json())
        staging.mkdir(parents=True)
        (staging / "weights").write_bytes(b"12345")
    return staging


def ok(**figures: Any) -> StageResult:
    return StageResult(outcome=Outcome.SUCCEEDED, files=(FileEntry(path="weights", size=5, sha256="0" * 64),), figures=figures)


def manifest(folder: Path, job: str, status: str) -> None:
    folder.mkdir(parents=True)
    (folder / "MANIFEST.json").write_text(json.dumps({"export_id": job, "status": status, "run": "run", "step": 4, "files": []}))


def rebuilt(paths: Paths) -> tuple[Journal, Rebuilt]:
    journal = Journal(paths.journal)
    return journal, rebuild(journal.database, paths, target_of)


def state_of(journal: Journal, job: str) -> str:
    row = journal.jobs.get(job)
    assert row is not None
    return row.state


def test_an_interrupted_job_goes_on_with_its_finished_stages_finished(paths: Paths) -> None:  # R6.5
    pin(paths, "job")
    staging = attempt(paths, "job", "merge", 2, ok())
    attempt(paths, "job", "merge", 1, StageResult(outcome=Outcome.RETRYABLE, fault=FAULT))
    attempt(paths, "job", "pytorch", 1, ok()).joinpath("weights").write_bytes(b"too short or too long")
    attempt(paths, "job", "onnx", 1, StageResult(outcome=Outcome.PERMANENT, fault=FAULT))
    attempt(paths, "job", "reference", 1, None)
    journal, what = rebuilt(paths)
    assert what == Rebuilt(open=1, ended=0, given_up=0, skipped=0)
    job = journal.jobs.get("job")
    assert job is not None
    assert (job.state, job.checkpoint, job.work, job.base) == ("running", reference(digest="job"), WORK, Path("/base"))
    assert (job.pin, job.target) == (paths.pins / "job", Path("/exports/run/4"))
    stages = journal.stages.of("job")
    assert {name: (stage.state, stage.attempts, stage.failures) for name, stage in stages.items()} == {
        "merge": ("succeeded", 2, 1), "pytorch": ("waiting", 1, 0), "onnx": ("failed", 1, 1), "onnx-int8": ("waiting", 0, 0),
        "reference": ("waiting", 1, 0), "merged": ("waiting", 0, 0), "check-onnx": ("waiting", 0, 0), "check-onnx-int8": ("waiting", 0, 0),
        "speed": ("waiting", 0, 0), "report": ("waiting", 0, 0),
    }  # fmt: skip
    assert (stages["merge"].folder, stages["merge"].result, stages["onnx"].fault) == (staging, ok(), FAULT)
    assert sorted((row.stage, row.number, row.outcome) for row in journal.attempts.of("job")) == [
        ("merge", 1, "retryable"), ("merge", 2, "succeeded"), ("onnx", 1, "permanent"), ("pytorch", 1, "succeeded"),
        ("reference", 1, "interrupted"),
    ]  # fmt: skip
    assert journal.database.check(full=True) == []
    journal.close()


def test_rebuilding_again_changes_nothing(paths: Paths) -> None:
    pin(paths, "open")
    attempt(paths, "open", "merge", 1, ok())
    attempt(paths, "ended", "report", 1, ok(status="partial"), step=5)
    manifest(paths.output / "run" / "step-5", "ended", "partial")
    journal, first = rebuilt(paths)
    before = [tuple(row) for table in ("job", "stage", "attempt") for row in journal.database.read(f"SELECT * FROM {table}")]
    assert rebuild(journal.database, paths, target_of) == first == Rebuilt(open=1, ended=1, given_up=0, skipped=0)
    assert [tuple(row) for table in ("job", "stage", "attempt") for row in journal.database.read(f"SELECT * FROM {table}")] == before
    journal.close()


@pytest.mark.parametrize("status", ["succeeded", "partial", "failed"])
def test_a_published_job_is_ended_as_its_manifest_says(paths: Paths, status: str) -> None:
    attempt(paths, "job", "merge", 1, ok())
    attempt(paths, "job", "report", 1, ok(status=status))
    suffix = ".failed" if status == "failed" else ""
    manifest(paths.output / "run" / f"step-4{suffix}", "job", status)
    journal, what = rebuilt(paths)
    job = journal.jobs.get("job")
    assert job is not None and (what.ended, job.state, job.target) == (1, status, paths.output / "run" / "step-4")
    assert {stage.state for stage in journal.stages.of("job").values()} <= {"succeeded", "failed", "skipped"}
    journal.close()


def test_a_job_whose_export_was_removed_since_is_not_done_again(paths: Paths) -> None:
    """Retention removes exports of checkpoints that may still be there: a rebuilt journal must not bring them all back."""
    attempt(paths, "job", "report", 1, ok(status="succeeded"))
    journal, _ = rebuilt(paths)
    assert state_of(journal, "job") == "succeeded"
    journal.close()


def test_a_job_whose_pin_is_gone_is_left_to_the_watcher(paths: Paths) -> None:
    attempt(paths, "job", "merge", 1, ok())
    journal, what = rebuilt(paths)
    assert journal.jobs.get("job") is None and (what.open, what.ended) == (0, 0)
    journal.close()


def test_a_job_that_waited_for_its_first_stage_is_known_by_its_entry(paths: Paths) -> None:
    write_entry(paths, JobEntry(
        job="job", checkpoint=reference(), work=WORK, pin=str(pin(paths, "job")), target="/out", fingerprint="f", created="2026",
        warnings=("w",), newest_first=True,
    ))  # fmt: skip
    journal, _ = rebuilt(paths)
    job = journal.jobs.get("job")
    assert job is not None
    assert (job.state, job.target, job.created, job.warnings) == ("pending", Path("/out"), "2026", ("w",))
    assert journal.sightings.fingerprint(reference().path) == "f"
    journal.close()


def test_files_that_make_no_sense_are_passed_over_one_by_one(paths: Paths) -> None:
    pin(paths, "good")
    attempt(paths, "good", "merge", 1, ok())
    attempt(paths, "good", "pytorch", 1, ok())
    (paths.attempt("good", "pytorch", 1) / "result.json").write_bytes(b"\xff{")
    attempt(paths, "torn", "merge", 1, ok(), step=5)
    (paths.attempt("torn", "merge", 1) / "job.json").write_text('{"job": ')
    shutil.copytree(paths.jobs / "good", paths.jobs / "renamed")
    (paths.jobs / "a file").write_text("x")
    (paths.jobs / "empty").mkdir()
    for name, text in (("1", "["), ("2", "[]"), ("3", '{"export_id": 3}'), ("4", '{"export_id": "unknown", "status": "succeeded"}')):
        (paths.output / name).mkdir()
        (paths.output / name / "MANIFEST.json").write_text(text)
    with capture_logs() as logs:
        journal, what = rebuilt(paths)
    assert journal.jobs.open_ids() == {"good"}
    assert journal.stages.of("good")["pytorch"].state == "waiting"
    assert what.open == 1 and what.skipped >= 4
    assert {record["log_level"] for record in logs} == {"warning"}
    journal.close()


def test_a_backup_is_completed_by_what_happened_after_it(paths: Paths) -> None:
    journal = Journal(paths.journal)
    for step, job in enumerate(("went on", "ended", "lost its pin", "untouched", "cancelled"), 1):
        stages = ("merge", "pytorch", "onnx", "onnx-int8", "reference", "merged", "report")
        journal.jobs.add(NewJob(job, reference(step, digest=job), WORK, stages, pin(paths, job), Path("/out") / job, job))
    journal.jobs.start("went on", Path("/base"))
    assert journal.attempts.claim(Intent(AttemptId("went on", "merge", 1), paths.attempt("went on", "merge", 1), Path("/s"), 1))
    journal.controls.cancel("cancelled", "a person")
    # Here the backup was taken; then:
    attempt(paths, "went on", "merge", 1, None, step=1)
    attempt(paths, "went on", "merge", 2, ok(), step=1)
    attempt(paths, "ended", "merge", 1, ok(), step=2)
    attempt(paths, "ended", "report", 1, ok(status="succeeded"), step=2)
    manifest(paths.output / "run" / "step-2", "ended", "succeeded")
    shutil.rmtree(paths.pins / "ended")
    shutil.rmtree(paths.pins / "lost its pin")
    what = rebuild(journal.database, paths, target_of)
    assert what == Rebuilt(open=2, ended=3, given_up=1, skipped=0)
    assert {job: state_of(journal, job) for job in ("went on", "ended", "lost its pin", "untouched", "cancelled")} == {
        "went on": "running", "ended": "succeeded", "lost its pin": "superseded", "untouched": "pending", "cancelled": "cancelled",
    }  # fmt: skip
    assert [(row.number, row.outcome) for row in journal.attempts.of("went on")] == [(1, "interrupted"), (2, "succeeded")]
    merge = journal.stages.of("went on")["merge"]
    assert (merge.state, merge.attempts) == ("succeeded", 2)
    assert journal.sightings.places("lost its pin") == {} and journal.sightings.places("untouched") != {}
    assert journal.database.check(full=True) == []
    journal.close()


def test_the_watcher_finds_what_is_there_and_takes_nothing_twice(desk: Desks, add: Callable[..., Path]) -> None:
    """One checkpoint's export is published, one is in the middle of it, one has only been pinned: all three are known again."""
    here = desk()
    places = [add(here, step) for step in (4, 6, 8)]
    here.look()
    done, midway, waiting = sorted(here.jobs(), key=lambda job: job.checkpoint.step)
    paths = here.runner.paths
    for job in (done, midway):
        folder = paths.attempt(job.id, "report", 1)
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(StageContext(
            job=job.id, stage="report", attempt=1, checkpoint=job.checkpoint, pin=str(job.pin), staging="/s", result="/r",
            temporary="/t", cache="/c", work=job.work,
        ).model_dump_json())  # fmt: skip
    manifest(done.target, done.id, "succeeded")
    os.utime(done.target / "MANIFEST.json", (2e9, 2e9))
    shutil.rmtree(done.pin)
    here.journal.close()
    paths.journal.write_bytes(b"garbage" * 999)
    here.journal = open_journal(paths)
    intake = Intake(here.settings, here.journal, paths)
    here.tracker = type(here.tracker)(here.settings.watch, intake, taken=lambda: None)
    assert sorted(job.id for job in here.jobs()) == sorted([midway.id, waiting.id])
    here.look()
    assert sorted(job.id for job in here.jobs()) == sorted([midway.id, waiting.id]), "and none of them is entered again"
    assert [here.seen_as(place) for place in places] == ["taken"] * 3
    assert here.job(done.id).state == "succeeded"


@pytest.mark.slow
def test_an_export_alone_is_enough_not_to_make_it_again(make_service: Callable[..., Service], pico_checkpoint: Path) -> None:  # R6.5
    """A daemon is stopped, its journal destroyed, and started again: once with all its traces, once with nothing but the exports."""
    service = make_service()
    service.add(pico_checkpoint)
    service.start()
    (job,) = service.wait_ended()
    service.add(pico_checkpoint.with_name("checkpoint-2"), run="other")
    service.wait_for(lambda v: any(s["name"] == "merge" and s["state"] == "succeeded" for j in v["jobs"] if j["run"] == "other"
                                   for s in j["stages"]))  # fmt: skip
    service.kill()
    before = listing(Path(job["target"]))
    stamp = (Path(job["target"]) / "MANIFEST.json").stat().st_mtime_ns
    (service.state / "journal.sqlite3").write_bytes(os.urandom(20_000))
    service.start()
    deadline = time.monotonic() + 60
    while "was set aside and rebuilt from disk" not in service.log():
        assert time.monotonic() < deadline, service.log()[-3000:]
        time.sleep(0.1)
    first, second = sorted(service.wait_ended(2), key=lambda one: str(one["run"]), reverse=True)
    assert service.stop() == 0
    assert (first["id"], first["state"], second["state"]) == (job["id"], "succeeded", "succeeded")
    attempts = {stage["name"]: stage["attempts"] for stage in second["stages"]}
    assert attempts["merge"] == 1, "a finished stage is not repeated"
    assert (listing(Path(job["target"])), (Path(job["target"]) / "MANIFEST.json").stat().st_mtime_ns) == (before, stamp)
    shutil.rmtree(service.state / "jobs")
    (service.state / "journal.sqlite3").write_bytes(b"garbage" * 999)
    database = open_journal(prepare(service.state, service.exports))
    told = rebuilt_state(database.database)
    assert told is not None and told["jobs"] == {"open": 0, "ended": 2}
    database.close()
