"""`ckptd explain PATH`: the reason why a checkpoint is (not) taken can be asked, of the disk, the daemon and the journal."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.cli import explain as verbs
from daemon.cli.views.explanation import print_explanation
from daemon.config.settings import Settings, StateSettings
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs.figures import CheckFigures, Decision
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.operating.monitoring import artifacts
from daemon.operating.monitoring import explain as monitoring
from daemon.operating.monitoring.explain import Remembered, explain
from tests.cli.test_bad_input import ckptd, export, one_sentence
from tests.cli.test_width import FOUND
from tests.detection.helpers import copy_of
from tests.runner.conftest import Toy

LAST = "trainer_state.json"


def explained(folder: Path, path: Path, *arguments: str | Path) -> dict[str, Any]:
    """The answer in JSON; its exit code says whether everything there is complete."""
    answer = ckptd(folder, "explain", path, "--json", *arguments)
    assert answer.returncode in (0, 1), answer.stderr
    value: dict[str, Any] = json.loads(answer.stdout)
    assert answer.returncode == (0 if value["complete"] else 1)
    return value


def test_a_complete_checkpoint_is_described_and_nothing_is_written(tmp_path: Path, pico_checkpoint: Path) -> None:  # R1.5
    checkpoint = copy_of(pico_checkpoint, tmp_path / "runs" / "run" / "checkpoint-4")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    answer = ckptd(tmp_path, "explain", checkpoint)
    assert answer.returncode == 0, answer.stderr
    for part in (f"{checkpoint}: complete", "trainer-adapter", "step 4", "LORA on", "knows nothing of it", 'wanted: select.policy = "all"'):
        assert part in answer.stdout
    assert "no: it is not below any of watch.roots, which are: none" in answer.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    value = explained(tmp_path, checkpoint)
    assert (value["layout"], value["step"], value["missing"], value["journal"]) == ("trainer-adapter", 4, [], None)
    read = {row["name"] for row in value["files"] if row["read"]}
    assert "adapter_model.safetensors" in read and "optimizer.pt" not in read


@pytest.mark.parametrize(("name", "why"), [(LAST, "is not there yet"), ("adapter_model.safetensors", "is not there yet")])
def test_what_is_missing_is_named_and_the_exit_code_is_one(tmp_path: Path, pico_checkpoint: Path, name: str, why: str) -> None:  # R1.5
    checkpoint = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    (checkpoint / name).unlink()
    answer = ckptd(tmp_path, "explain", checkpoint)
    assert answer.returncode == 1
    assert "incomplete" in answer.stdout
    assert any(line.startswith("missing") and name in line and why in line for line in answer.stdout.splitlines())
    assert "wanted" not in answer.stdout


def test_a_runs_directory_gets_a_line_for_each_checkpoint(tmp_path: Path, pico_run: Path) -> None:  # R1.5
    run = tmp_path / "runs" / "run"
    shutil.copytree(pico_run, run)
    (run / "checkpoint-4" / LAST).unlink()
    copy_of(pico_run / "checkpoint-4", run / "checkpoint-10", step=10)
    answer = ckptd(tmp_path, "explain", run)
    assert answer.returncode == 1
    lines = answer.stdout.splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == ["checkpoint-2", "checkpoint-4", "checkpoint-10"]
    assert "incomplete" in lines[1] and LAST in lines[1]
    assert not any("incomplete" in line for line in (lines[0], lines[2]))
    shutil.copy(pico_run / "checkpoint-4" / LAST, run / "checkpoint-4")
    value = explained(tmp_path, tmp_path / "runs")
    assert (value["kind"], [row["step"] for row in value["checkpoints"]]) == ("run", [2, 4, 10])


def test_a_refused_layout_comes_with_its_commands_in_explain_and_in_export(tmp_path: Path) -> None:  # R1.5
    checkpoint = tmp_path / "run" / "step-000100"
    checkpoint.mkdir(parents=True)
    (checkpoint / "lit_model.pth.lora").write_bytes(b"PK")
    answer = ckptd(tmp_path, "explain", checkpoint)
    assert answer.returncode == 0
    assert "not exported in this form" in answer.stdout and f"`litgpt merge_lora {checkpoint}`" in answer.stdout
    refused = export(tmp_path, checkpoint)
    assert refused.returncode == 1
    assert f"`litgpt merge_lora {checkpoint}`" in one_sentence(refused)
    assert not (tmp_path / "out").exists()


def test_a_path_that_is_not_there_is_a_usage_error_and_a_file_stands_for_its_directory(tmp_path: Path, pico_checkpoint: Path) -> None:
    answer = ckptd(tmp_path, "explain", tmp_path / "nowhere")
    assert answer.returncode == 2
    assert "there is no such file or directory" in one_sentence(answer)
    assert explained(tmp_path, pico_checkpoint / "adapter_config.json")["path"] == str(pico_checkpoint)


def test_a_file_that_belongs_to_no_checkpoint_does_not_stand_for_the_directory_around_it(tmp_path: Path, pico_checkpoint: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    (checkpoint / "global_step4").mkdir()
    inside = [checkpoint / "notes.txt", checkpoint / "global_step4" / "x.pt"]
    outside = [tmp_path / "my.toml", tmp_path / "run" / "log.txt"]
    for file in (*inside, *outside):
        file.touch()
    settings = Settings(state=StateSettings(directory=tmp_path / "state"))
    for file in outside:
        with pytest.raises(UsageError, match="it is a file that does not belong to a checkpoint"):
            explain(settings, file)
    assert [explain(settings, file).path for file in inside] == [str(file.parent) for file in inside]
    (tmp_path / "run" / "last.ckpt").touch()
    assert explain(settings, tmp_path / "run" / "last.ckpt").path == str(tmp_path / "run")


def test_an_empty_directory_is_no_checkpoint_yet(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint-4").mkdir(parents=True)
    answer = ckptd(tmp_path, "explain", tmp_path / "run" / "checkpoint-4")
    assert answer.returncode == 1
    assert "not recognized yet" in answer.stdout and "no adapter and no model weights in it yet" in answer.stdout


@pytest.mark.slow
def test_a_plain_adapter_tells_when_it_will_have_been_quiet_long_enough(tmp_path: Path, pico_checkpoint: Path) -> None:
    final = tmp_path / "run" / "final"
    shutil.copytree(pico_checkpoint, final, ignore=shutil.ignore_patterns(LAST, "training_args.bin"))
    for path in final.iterdir():
        os.utime(path)
    value = explained(tmp_path, final)
    assert (value["layout"], value["run"]) == ("adapter", "run")
    assert 0 < value["settles_in_seconds"] <= 33
    for path in final.iterdir():
        os.utime(path, (1e9, 1e9))
    assert explained(tmp_path, final)["settles_in_seconds"] is None


def test_of_files_that_bear_a_time_to_come_no_settling_is_told(tmp_path: Path, pico_checkpoint: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    os.utime(checkpoint / "adapter_model.safetensors", (4e9, 4e9))
    value = explained(tmp_path, checkpoint)
    assert value["complete"] and (value["quiet_seconds"], value["settles_in_seconds"]) == (None, None)


def test_a_run_of_axolotl_is_complete_when_its_checkpoints_are(tmp_path: Path, pico_checkpoint: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, tmp_path / "runs" / "run" / "checkpoint-4")
    shutil.copy(checkpoint / "adapter_config.json", checkpoint.parent)
    for folder in (checkpoint.parent, checkpoint.parent.parent):
        answer = ckptd(tmp_path, "explain", folder)
        assert answer.returncode == 0 and "incomplete" not in answer.stdout
        assert len(answer.stdout.splitlines()) == 2


def test_lines_of_a_run_say_what_is_not_watched_and_what_is_not_wanted(tmp_path: Path, pico_checkpoint: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        f'[watch]\nroots = ["{tmp_path}/runs"]\ndepth = 2\n[select]\npolicy = "every"\nevery = 8\nfinal = false\n'
        f'[output]\ndirectory = "{tmp_path}/out"\n[state]\ndirectory = "{tmp_path}/state"\n'
    )
    copy_of(pico_checkpoint, tmp_path / "runs/run/checkpoint-4")
    copy_of(pico_checkpoint, tmp_path / "runs/run/checkpoint-8", step=8)
    copy_of(pico_checkpoint, tmp_path / "runs/a/deep/run/checkpoint-8", step=8)
    lines = ckptd(tmp_path, "explain", tmp_path / "runs", "--config", config).stdout.splitlines()[1:]
    assert "not watched: it is more than watch.depth = 2" in lines[0]
    assert "not wanted: select.every = 8 does not divide step 4" in lines[1]
    assert "not taken yet" in lines[2]


@pytest.mark.slow
def test_an_export_in_the_foreground_is_known_and_so_is_what_was_written_since(tmp_path: Path, pico_checkpoint: Path) -> None:  # R1.5
    checkpoint = copy_of(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    config = json.loads((checkpoint / "adapter_config.json").read_bytes())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "acme/absent"}))
    assert export(tmp_path, checkpoint).returncode == 1
    known = explained(tmp_path, checkpoint)["journal"]
    assert (known["by"], known["verdict"], known["job_state"], known["current"]) == ("export", "taken", "failed", True)
    text = ckptd(tmp_path, "explain", checkpoint).stdout
    assert f"taken as job {known['job']} (failed) by `ckptd export` at" in text
    assert "it has changed since" not in text
    shutil.copy(pico_checkpoint / "adapter_config.json", checkpoint)
    assert explained(tmp_path, checkpoint)["journal"]["current"] is False
    assert "it has changed since" in ckptd(tmp_path, "explain", checkpoint).stdout


@pytest.mark.slow
def test_with_a_daemon_it_tells_what_was_taken_skipped_and_since_when_the_rest_is_incomplete(
    make_toy: Callable[..., Toy], pico_run: Path
) -> None:  # R1.5 R6.1
    service = make_toy(extra='[select]\npolicy = "every"\nevery = 4\nfinal = false\n')
    taken = service.add(pico_run / "checkpoint-4", run="one")
    skipped = service.add(pico_run / "checkpoint-2", run="one")
    unfinished = service.add(pico_run / "checkpoint-2", run="two")
    (unfinished / LAST).unlink()
    service.start()
    service.wait_for(lambda v: v["jobs"] and v["incomplete"])
    config = ("--config", service.config)
    first = explained(service.folder, taken, *config)
    assert first["watched"] and first["daemon_running"]
    assert (first["journal"]["by"], first["journal"]["verdict"]) == ("daemon", "taken")
    assert first["selected"]["wanted"]
    service.wait_for(lambda v: explained(service.folder, skipped, *config)["journal"] is not None, 20)
    second = explained(service.folder, skipped, *config)
    assert second["journal"]["verdict"] == "skipped"
    assert not second["selected"]["wanted"] and "does not divide step 2" in second["selected"]["reason"]
    third = explained(service.folder, unfinished, *config)
    assert (third["complete"], third["journal"]) == (False, None)
    assert third["incomplete_seconds"] >= 0
    text = ckptd(service.folder, "explain", service.root, *config).stdout
    assert f"one/checkpoint-4: complete, trainer-adapter, step 4: taken as job {first['journal']['job']}" in text
    assert "the daemon has seen it incomplete for" in ckptd(service.folder, "explain", unfinished, *config).stdout
    assert service.stop() == 0


def test_a_run_says_when_what_is_not_taken_yet_will_have_been_quiet_long_enough(tmp_path: Path, pico_checkpoint: Path) -> None:
    final = tmp_path / "run" / "final"
    shutil.copytree(pico_checkpoint, final, ignore=shutil.ignore_patterns(LAST, "training_args.bin"))
    for path in final.iterdir():
        os.utime(path)
    line = ckptd(tmp_path, "explain", tmp_path / "run").stdout.splitlines()[1]
    assert re.search(r"not taken yet: in \d+ s, unless it changes again, once a daemon runs$", line), line
    for path in final.iterdir():
        os.utime(path, (1e9, 1e9))
    assert ckptd(tmp_path, "explain", tmp_path / "run").stdout.splitlines()[1].endswith("not taken yet")


@pytest.mark.slow
def test_the_base_is_named_with_its_folder_or_with_where_it_was_looked_for(tmp_path: Path, pico_checkpoint: Path, pico_base: Path) -> None:
    value = explained(tmp_path, pico_checkpoint)
    assert value["base_folder"] == value["base"] and value["base_problem"] is None
    assert f"base      found: {value['base']}" in ckptd(tmp_path, "explain", pico_checkpoint).stdout
    stray = shutil.copytree(pico_checkpoint, tmp_path / "run" / "checkpoint-4")
    config = json.loads((stray / "adapter_config.json").read_text())
    (stray / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/absent"}))
    value = explained(tmp_path, stray)
    assert value["base_folder"] is None and 'set base.map."org/absent"' in value["base_problem"] and "looked in " in value["base_problem"]
    assert "base      Could not find the base model" in ckptd(tmp_path, "explain", stray).stdout
    full = explained(tmp_path, pico_base)
    assert (full["base_folder"], full["base_problem"]) == (None, None)


def test_a_slow_look_is_told_from_a_file_system_that_does_not_answer(
    tmp_path: Path, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    monkeypatch.setattr(verbs, "EXPLAIN_SECONDS", 0.2)
    monkeypatch.setattr(monitoring, "explain", lambda settings, path: held.wait(60))
    monkeypatch.setenv("CKPTD_STATE__DIRECTORY", str(tmp_path / "state"))
    try:
        with pytest.raises(UsageError, match="its files' headers took more than") as caught:
            verbs.explain(pico_checkpoint, config=None, json_=False)
    finally:
        held.set()
    assert caught.value.fault.code == "timeout"


def test_a_run_whose_checkpoints_take_long_is_answered_in_time_and_says_what_was_left_out(
    tmp_path: Path, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "run"
    for step in (4, 8, 12):
        copy_of(pico_checkpoint, run / f"checkpoint-{step}")
    monkeypatch.setattr(monitoring, "RUN_SECONDS", -1.0)
    value = explain(Settings(state=StateSettings(directory=tmp_path / "state")), run)
    assert isinstance(value, monitoring.RunExplanation)
    assert not value.complete and value.checkpoints == ()
    (sentence,) = value.unreadable
    assert "3 were left out" in sentence and f"for example {run / 'checkpoint-4'}" in sentence


def test_a_folder_of_an_export_is_called_one_and_no_checkpoint(tmp_path: Path, pico_base: Path) -> None:
    export = tmp_path / "exports" / "foxes" / "step-10"
    copy_of(pico_base, export / "pytorch")
    manifest = {"manifest_version": 1, "export_id": "foxes-10-ab", "run": "foxes", "step": 10, "status": "succeeded", "checkpoint": "/r/c"}
    (export / "MANIFEST.json").write_text(json.dumps(manifest))
    for path in (export, export / "pytorch", export / "pytorch" / "config.json"):
        answer = ckptd(tmp_path, "explain", path)
        said = " ".join(answer.stdout.split())
        assert answer.returncode == 0 and "This is an export of foxes, step 10, made of /r/c" in said, answer.stderr
        assert f"`ckptd show {export}`" in said and "not watched" not in said
    value = json.loads(ckptd(tmp_path, "explain", export, "--json").stdout)
    assert (value["kind"], value["id"], value["step"]) == ("export", "foxes-10-ab", 10)


def test_limits_that_a_check_leaves_undecided_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    decided = Decision(limit="agreement", allowed=0.85, outcome="passed", texts=64)
    left_open, never_read = (Decision(limit=limit, allowed=0.05, texts=texts) for limit, texts in (("kl", 64), ("fine_tuning", 0)))
    figures = CheckFigures(decisions=(decided, left_open, never_read)).written()
    checks = [
        ArtifactCheck(variant=name, verdict=Verdict.PASSED, figures=figures if name == "onnx" else {}) for name in ("onnx", "pytorch")
    ]
    undecided = artifacts._undecided(checks)
    assert undecided == {"onnx": ("kl",)}
    known = Remembered("daemon", "taken", "2026-11-23T08:00:00+00:00", "a", "succeeded", True, {"onnx": "passed"}, (), undecided)
    print_explanation(replace(FOUND, journal=known))
    assert re.search(r"^artifacts +onnx: undecided: KL$", capsys.readouterr().out, re.MULTILINE)
