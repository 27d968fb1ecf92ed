"""What `ckptd export` says without a terminal: stages that are tried again or were made before, waits, and where its log is."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from daemon.checkpoints.inspection import inspect
from daemon.cli.export.options import base_here
from daemon.cli.views.export import ExportView, Wait, stages_display
from daemon.config.settings import BaseModelSettings, Settings
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.rows import StageRow
from daemon.operating.monitoring.live import StageProgress
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


def test_the_advice_on_a_full_disk_is_what_the_command_takes(view: ExportView) -> None:
    remedy = "free space there, set output.directory to a larger disk, or lower limits.disk_reserve"
    told = view.advice(remedy)
    assert told == "free space there, give another folder with --output, or lower limits.disk_reserve"


def test_an_export_that_failed_leaves_no_empty_folders_in_its_output(pico_checkpoint: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "CKPTD_LIMITS__DISK_RESERVE": "0", "HF_HUB_OFFLINE": "1"}
    broken = tmp_path / "run" / pico_checkpoint.name
    shutil.copytree(pico_checkpoint, broken)
    config = json.loads((broken / "adapter_config.json").read_text())
    (broken / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "acme/nowhere"}))
    command = [sys.executable, "-m", "daemon", "export", str(broken), "--output", str(tmp_path / "out")]
    environment["PYTHONPATH"] = str(ROOT)
    answer = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = " ".join(answer.stderr.split())
    assert answer.returncode != 0 and said.count("no folder with its config.json") == 1, said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run"], "what is left is the report of what failed"


def test_a_base_by_a_relative_path_is_looked_for_below_the_current_directory_too(
    pico_checkpoint: Path, pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pico_base, tmp_path / "models" / "tiny")
    inspection, settings = replace(inspect(pico_checkpoint), base_name="models/tiny"), Settings()
    assert base_here(settings, inspection) is None
    monkeypatch.chdir(tmp_path)
    assert base_here(settings, inspection) == tmp_path / "models" / "tiny"
    assert base_here(settings, replace(inspection, base_name="models")) is None, "no model is there"
    searched = Path(shutil.copytree(tmp_path / "models", tmp_path / "elsewhere" / "models")).parent
    settings = settings.model_copy(update={"base": BaseModelSettings(search=(searched,))})
    assert base_here(settings, inspection) is None, "the configuration goes first"


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


def screen(width: int, view: ExportView, running: dict[str, StageProgress], stages: dict[str, StageRow]) -> list[str]:
    """What the display of the stages looks like on a terminal."""
    said = io.StringIO()
    console = Console(file=said, width=width, force_terminal=True, color_system=None)
    view._live, view._progress = True, stages_display(console)
    view.show(stages, running)
    console.print(view._progress.get_renderable())
    return said.getvalue().splitlines()


def test_a_long_note_is_cut_and_never_the_name_of_a_stage(view: ExportView) -> None:
    note = "onnx-int8, beside the model that its own weights give, with each of the texts"
    stages = {name: row(name, "running", attempts=1) for name in ("check-onnx", "check-onnx-int8-dynamic")}
    lines = screen(80, view, {name: StageProgress(1, 0.5, note, 70.0, "x", 0) for name in stages}, stages)
    assert [line.split()[1] for line in lines] == [*stages], "one line each, beginning with its whole name"
    assert all("━" in line and "onnx-int8, bes" in line and line.rstrip().endswith("…") for line in lines)


def test_what_waits_does_not_turn_and_what_was_skipped_has_no_bar(view: ExportView) -> None:
    stages = {"onnx": row("onnx", "running", attempts=1), "gguf": row("gguf", "waiting"), "speed": row("speed", "skipped"),
              "merge": row("merge", "waiting", attempts=1, failures=1, fault=CRASH)}  # fmt: skip
    onnx, gguf, speed, merge = screen(100, view, {"onnx": StageProgress(1, 0.5, "tracing", 7.0, "x", 0)}, stages)
    assert "━" in onnx and onnx.split()[1:2] == ["onnx"]
    assert (gguf.split(), speed.split(), merge.split()[0]) == (["gguf"], ["speed", "skipped"], "merge")
    assert "its process was killed" in merge and "━" not in merge
