"""`ckptd status` and `list` name causes: what is waited for, why an export failed, who is short of CPU time, that a disk is full."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.cli.views.jobs import jobs_lines
from daemon.cli.views.status import status_lines
from daemon.config.places.paths import StatePaths, prepare
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import ArtifactCheck, Outcome, StageResult, Verdict
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId
from daemon.operating.monitoring import reasons
from daemon.operating.monitoring.live import DelayedState, LiveFile, write_live
from daemon.operating.monitoring.status import JobStatus, snapshot
from daemon.operating.wording.exports import retry_helps
from daemon.system.lock import locked
from handlers.validate.checks.examination import Examination
from handlers.validate.verdict import judge
from tests.cli.test_bad_input import ckptd
from tests.cli.test_layout import job, shown, status
from tests.journal.entries import STAGES, enter, reference


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return prepare(tmp_path / "state", tmp_path / "out").state


def jobs_of(state: Path, live: LiveFile) -> Mapping[str, JobStatus]:
    """Job → what is said of it while a daemon runs that wrote `live`."""
    write_live(StatePaths(state).live, live)
    with locked(StatePaths(state).lock):
        return {row.id: row for row in snapshot(state).jobs}


def fault(code: FaultCode) -> Fault:
    return Fault(code=code, operation="do it", cause="it can't", remedy="mend it")


def failed_by(journal: Journal, name: str, step: int, code: FaultCode) -> None:
    """An export whose first stage failed."""
    enter(journal, name, reference(step, digest=name))
    journal.jobs.start(name, None)
    journal.stages.end(name, STAGES[0], "failed", fault(code))
    for stage in STAGES[1:]:
        journal.stages.end(name, stage, "skipped", fault(FaultCode.SKIPPED))
    journal.jobs.finish(name, "failed", None)


def rejected(journal: Journal, name: str, step: int, remedy: str) -> None:
    """An export of which one artifact was made and missed a limit, and another one was not planned."""
    enter(journal, name, reference(step, digest=name))
    journal.jobs.start(name, None)
    check = ArtifactCheck(variant="pytorch", verdict=Verdict.FAILED, reasons=("it differs",), remedy=remedy)
    for stage in STAGES:
        attempt = AttemptId(name, stage, 1)
        assert journal.attempts.claim(Intent(attempt, Path("/a"), Path("/s"), 0))
        result = StageResult(outcome=Outcome.SUCCEEDED, seconds=1, checks=(check,) if stage == "merged" else ())
        journal.attempts.settle(attempt, result, state="succeeded")
    journal.jobs.finish(name, "failed", None)


def test_the_list_tells_failures_apart_in_a_few_words(state: Path) -> None:
    wanted = {
        FaultCode.BASE_NOT_FOUND: "base not found", FaultCode.OUT_OF_MEMORY: "out of memory", FaultCode.MEMORY_LIMIT: "out of memory",
        FaultCode.TIMEOUT: "timed out", FaultCode.TOOLCHAIN_MISSING: "toolchain missing", FaultCode.CRASHED: "crashed",
    }  # fmt: skip
    journal = Journal(StatePaths(state).journal)
    for step, code in enumerate(wanted):
        failed_by(journal, f"j{step}", step, code)
    limits = "relax validate.thresholds.pytorch.kl and validate.thresholds.pytorch.error if you accept the difference"
    rejected(journal, "far", 90, limits)
    rejected(journal, "broken", 91, "leave it out")
    journal.close()
    rows = jobs_of(state, LiveFile())
    assert [rows[f"j{step}"].reason for step in range(len(wanted))] == list(wanted.values())
    assert (rows["far"].reason, rows["broken"].reason) == ("rejected: KL, logit error; not made", "rejected; not made")
    lines = shown(jobs_lines(list(rows.values()), None))
    assert any("failed" in line and "(base not found)" in line for line in lines) and any("(rejected: KL," in line for line in lines)
    assert not retry_helps(rows["far"]) and retry_helps(rows["j3"]), "what was judged gets the same verdict again"
    assert any(line.endswith("timed out") for line in shown(jobs_lines([replace(rows["j3"], run="a-long-name-of-a-run-" * 3)], 60)))


def test_what_a_less_quantized_form_replaces_is_counted_as_replaced() -> None:
    verdicts = {"pytorch": "passed", "onnx": "passed", "onnx-int8": "failed", "onnx-int8-weight": "passed"}
    row = job(
        state="partial", activity="partial", run="a-long-name-of-a-run-" * 3, artifacts=verdicts, reason="replaced by onnx-int8-weight",
        replaced={"onnx-int8": "onnx-int8-weight"}, added=("onnx-int8-weight",),
    )  # fmt: skip
    said = " ".join(" ".join(shown(jobs_lines([row], 100))).split())
    assert "2 passed, 1 replaced by onnx-int8-weight" in said and "failed" not in said
    also = replace(row, artifacts={**verdicts, "onnx": "failed"}, reason="rejected: KL; replaced by onnx-int8-weight")
    assert "1 failed, 1 passed, 1 replaced" in " ".join(" ".join(shown(jobs_lines([also], 100))).split())


def test_what_did_not_run_or_could_not_be_verified_is_told_from_what_missed_a_limit() -> None:
    check = ArtifactCheck(variant="onnx", verdict=Verdict.FAILED, reasons=("it could not be run: no memory",), remedy="free some")
    assert reasons.rejection(check) == "rejected: it does not run"
    assert reasons.rejection(check.model_copy(update={"verdict": Verdict.UNVERIFIED})) == "not verified"


@pytest.mark.parametrize(
    ("limit", "name"), [("kl", "KL"), ("agreement", "agreement"), ("error_max", "logit error"), ("perplexity_ratio", "perplexity")]
)
def test_the_limits_that_a_check_says_are_missed_are_named(limit: str, name: str) -> None:
    figures = CheckFigures(agreement=0.99, kl=0.001, error_max=0.1, perplexity_ratio=1.0, positions=300, logit_std=1.0)
    missed = figures.plus(**{limit: 0.1 if limit == "agreement" else 9.0})
    variant = catalog().variants["onnx-int8"]
    check = judge(variant.name, variant.limits, Examination(figures=missed), catalog().thresholds[variant.name])
    assert reasons.rejection(check) == f"rejected: {name}"


def test_what_an_export_waits_for_is_told_in_a_few_words(state: Path) -> None:
    journal = Journal(StatePaths(state).journal)
    codes = {"base": "base-not-found", "disk": "disk-now", "odd": "of-another-version", "old": None, "turn": None, "on": None}
    for step, name in enumerate(codes):
        enter(journal, name, reference(step, digest=name))
    journal.jobs.start("on", None)
    journal.close()
    waiting = dict.fromkeys(("base", "disk", "odd", "old"), "It waits.")
    live = LiveFile(pid=1, jobs=1, waiting=waiting, waiting_codes={name: code for name, code in codes.items() if code})
    rows = jobs_of(state, live)
    assert {name: row.reason for name, row in rows.items()} == {
        "base": "waits for its base", "disk": "waits for disk", "odd": "waits: of another version", "old": "waits for its next try",
        "turn": "waits for its turn", "on": None,
    }  # fmt: skip
    assert any(line.endswith("waits for its base") for line in shown(jobs_lines([rows["base"]], 80)))
    assert {row.reason for row in snapshot(state).jobs} == {None}, "without a daemon its state says why"


def test_a_checkpoint_that_can_not_be_pinned_for_want_of_room_waits_for_disk_and_is_watched(tmp_path: Path) -> None:
    disk = DelayedState.of(Path("/r/checkpoint-1"), fault(FaultCode.DISK_FULL).model_copy(update={"path": "/state/pins"}))
    away = DelayedState.of(Path("/r/checkpoint-2"), fault(FaultCode.SOURCE_AWAY))
    write_live(tmp_path / "live.json", LiveFile(pid=1, delayed=(disk, away)))
    with locked(tmp_path / "lock"):
        value = snapshot(tmp_path)
    lines = shown(status_lines(value, None, None))
    assert "waiting for disk /r/checkpoint-1: /state/pins: it can't; mend it" in lines
    assert "waiting for what is away /r/checkpoint-2: it can't; mend it" in lines
    assert not any("not watched" in line for line in lines)


def test_starvation_over_minutes_is_said_beside_the_health_of_the_daemon() -> None:
    value = status(job())
    hungry = replace(value, daemon=replace(value.daemon, starved=("For 4 min the stage merge gets little.",)))
    lines = shown(status_lines(hungry, 200, None))
    assert lines[0].startswith("running, healthy, short of CPU time (pid 4711")
    assert "short of CPU time For 4 min the stage merge gets little." in lines
    assert shown(status_lines(value, 200, None))[0].startswith("running, healthy (pid 4711")


@pytest.mark.parametrize(
    ("verdict", "unwell", "code"),
    [("healthy", (), 0), ("full", (), 75), ("unwell", ("It is.",), 1), ("full", ("The thread runner does not run.",), 1)],
)
def test_the_exit_code_tells_a_full_disk_from_a_daemon_that_is_unwell(
    tmp_path: Path, verdict: str, unwell: tuple[str, ...], code: int
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[watch]\nroots = ["{tmp_path}/runs"]\n[output]\ndirectory = "{tmp_path}/out"\n[state]\ndirectory = "{tmp_path}"\n')
    write_live(tmp_path / "live.json", LiveFile(pid=os.getpid(), verdict=verdict, unwell=unwell))
    with locked(tmp_path / "lock"):
        assert ckptd(tmp_path, "status", "--exit-code", "--config", config).returncode == code
        assert ckptd(tmp_path, "status", "--config", config).returncode == 0
