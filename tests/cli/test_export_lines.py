"""What `ckptd export` says without a terminal: stages that are tried again or were made before, waits, and where its log is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.checkpoints.inspection import inspect
from daemon.cli.views.export import ExportView, Wait
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.rows import StageRow
from daemon.running.rules.ready import describe

ROOT = Path(__file__).parents[2]
MEMORY = Fault(code=FaultCode.MEMORY_NOW, operation="start the stage onnx", cause="1 GB is free", remedy="free memory")
CRASH = Fault(code=FaultCode.UNEXPECTED, operation="run the stage merge", cause="its process was killed", remedy="nothing")


def row(name: str, state: str, **more: Any) -> StageRow:
    given = {"attempts": 0, "failures": 0, "retry_at": None, "retry_delay": None, "folder": None, "result": None, "fault": None, **more}
    return StageRow(name, state, **given)


def done(name: str, attempts: int) -> StageRow:
    return row(name, "succeeded", attempts=attempts, result=StageResult(outcome=Outcome.SUCCEEDED, seconds=2.0))


@pytest.fixture
def view(pico_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> ExportView:
    made = ExportView(inspect(pico_checkpoint), Path("/state/export/ckptd.log"), quiet=False)
    capsys.readouterr()
    return made


def test_what_was_made_before_is_told_from_what_is_made_now(view: ExportView, capsys: pytest.CaptureFixture[str]) -> None:
    view.show({"merge": done("merge", 1), "pytorch": row("pytorch", "waiting"), "onnx": row("onnx", "waiting")}, {})
    view.show({"merge": done("merge", 1), "pytorch": done("pytorch", 0), "onnx": done("onnx", 1)}, {})
    assert capsys.readouterr().err.splitlines() == ["merge: was made before", "pytorch: reused", "onnx: succeeded in 2 s"]


def test_each_try_that_failed_is_said_once(view: ExportView, capsys: pytest.CaptureFixture[str]) -> None:
    for failures in (1, 1, 2, 2):
        view.show({"merge": row("merge", "waiting", attempts=failures, failures=failures, fault=CRASH)}, {})
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("merge: is tried again") == 2 and "its process was killed" in said


def test_a_wait_is_said_once(view: ExportView, capsys: pytest.CaptureFixture[str]) -> None:
    for waiting in (None, MEMORY, MEMORY.model_copy(update={"cause": "2 GB are free"}), None, MEMORY):
        view.show({"onnx": row("onnx", "waiting")}, {}, waiting and Wait(waiting.code, describe(waiting)))
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("GB") == 1 and "1 GB is free" in said


@pytest.mark.parametrize(
    "remedy",
    [
        "free memory, then run `ckptd queue retry` with the export's id", "install it; then run `ckptd queue retry JOB`",
        "run ckptd queue retry, or leave it out", "read its log (`ckptd show`)",
    ],
)  # fmt: skip
def test_advice_names_no_command_that_does_not_know_the_export(view: ExportView, remedy: str) -> None:
    told = view.advice(remedy)
    assert "ckptd queue retry" not in told and "ckptd show" not in told
    assert "run the same command again" in told or "(/state/export/ckptd.log)" in told


def test_a_second_export_of_the_same_checkpoint_is_told_to_wait(pico_checkpoint: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "CKPTD_EXPORT__VARIANTS": "pytorch"}

    def export(output: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "daemon", "export", str(pico_checkpoint), "--output", str(tmp_path / output)]
        return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    first = export("one")
    try:
        assert first.stderr is not None
        while "running" not in first.stderr.readline():
            assert first.poll() is None
        first.send_signal(signal.SIGSTOP)  # it must not end while the other one starts
        second = export("two")
        _, said = second.communicate(timeout=60)
    finally:
        first.kill()
        first.communicate()
    said = " ".join(said.split())
    assert second.returncode == 75 and f"another `ckptd export` (pid {first.pid}) exports it just now" in said
    assert "wait until that has ended" in said
