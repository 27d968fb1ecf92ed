"""`ckptd quality RUN`: quality, size and speed over a run's steps, and which checkpoint to deploy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from daemon.cli.views.run_quality import run_quality_lines
from daemon.config.places.paths import StatePaths, foreground_state
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.operating.monitoring.run_quality import RunQuality, run_quality
from tests.cli.test_bad_input import ckptd
from tests.journal.entries import WORK
from tests.publish.test_run_figures import report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with the exports of a run whose best by quality is not the trainer's (step 4)."""
    folder = tmp_path / "exports" / "run"
    for step, perplexity in ((2, 8.1), (4, 8.4), (60, 9.0)):
        (folder / f"step-{step}").mkdir(parents=True)
        found = report(step, perplexity=perplexity)
        failed = {**found["artifacts"][0], "variant": "onnx-activations-fp16", "verdict": "failed", "published": False}
        found["artifacts"].append(failed)
        (folder / f"step-{step}" / "report.json").write_text(json.dumps(found))
    return folder


def quality_of(run: Path, variant: str = "") -> RunQuality:
    return run_quality(run.parent / "state", run.parent, str(run), variant)


def test_each_step_has_a_row_for_each_artifact_and_a_sentence_says_what_to_deploy(run: Path) -> None:
    value = quality_of(run)
    assert (value.run, value.best_step, value.variant, value.metric, value.trainers_best) == ("run", 2, "onnx-int4", "perplexity", 4)
    lines = [" ".join(line.plain.split()) for line in run_quality_lines(value, 80)]
    assert lines[:4] == [
        "run run", "step variant KL agree perplexity size speed", "2 * onnx-int4 0.02 98 % 8.1 10 B –",
        "onnx-activations-fp16 failed 98 % 8.1 10 B –",
    ]  # fmt: skip
    assert lines[8] == "* to be deployed, by the perplexity of onnx-int4"
    assert " ".join(lines[9:]) == (
        "The trainer's best is step 4 (loss 2); by the perplexity of onnx-int4, step 2 is the best of 3 exports: 8.1 against 8.4 of step 4"
        " (1.04 ×, 1.04 to 1.04, 480 tokens of 12 texts). Deploy step 2; its report recommends none of its artifacts."
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_table_fits_the_terminal(run: Path, width: int) -> None:
    assert [line.plain for line in run_quality_lines(quality_of(run), width) if cell_len(line.plain) > width] == []


def test_an_export_that_is_gone_is_marked_and_not_chosen(run: Path) -> None:
    newest = json.loads((run / "step-60" / "report.json").read_text())
    newest["run_so_far"] = {"points": [{"export": "run-1", "step": 1, "finished": "", "comparison": "x", "artifacts": {
        "onnx-int4": {"verdict": "passed", "published": True, "quality": {"perplexity": 1.0}}}}]}  # fmt: skip
    (run / "step-60" / "report.json").write_text(json.dumps(newest))
    value = quality_of(run)
    assert value.best_step == 2 and value.exports[0].folder is None
    lines = [" ".join(line.plain.split()) for line in run_quality_lines(value, 80)]
    assert lines[2].startswith("1 - onnx-int4") and "- there is no export of this step now: it failed, or it was removed" in lines


def test_the_verb_answers_for_people_and_programs_and_names_the_runs_that_there_are(run: Path, tmp_path: Path) -> None:
    state = f"state.directory='{tmp_path / 'state'}'"
    value = json.loads(ckptd(tmp_path, "--set", state, "quality", run, "--json").stdout)
    assert (value["best"], value["best_step"], [one["step"] for one in value["exports"]]) == ("run-2", 2, [2, 4, 60])
    assert value["exports"][0]["artifacts"]["onnx-int4"]["quality"] == {"perplexity": 8.1}
    lost = ckptd(tmp_path, "--set", state, "quality", "gone")
    assert lost.returncode == 2 and "no run 'gone' has an export" in lost.stderr


def test_one_of_several_runs_has_to_be_named(run: Path) -> None:
    other = report(2)
    other["checkpoint"] = {**other["checkpoint"], "run": "second"}
    other["export_id"] = "second-2"
    (run / "other").mkdir()
    (run / "other" / "report.json").write_text(json.dumps(other))
    with pytest.raises(UsageError, match="there are several runs") as refused:
        quality_of(run)
    assert "second" in str(refused.value) and "run" in str(refused.value)


def test_a_run_is_found_by_its_name_where_its_exports_were_made_by_hand(run: Path, tmp_path: Path) -> None:
    """The daemon's journal knows none of them: they lie in its output, or where `ckptd export --output` has put them."""
    state = tmp_path / "state"
    own = StatePaths(foreground_state(state, Path("/runs/run/checkpoint-60")))
    own.state.mkdir(parents=True)
    journal = Journal(own.journal)
    for step in (2, 4):
        (run / f"step-{step}" / "MANIFEST.json").write_text("{}")
    elsewhere = tmp_path / "elsewhere" / "step-60"
    elsewhere.parent.mkdir()
    (run / "step-60").rename(elsewhere)
    reference = CheckpointRef(
        root="/runs", run="run", step=60, path="/runs/run/checkpoint-60", layout="trainer-adapter", digest="x", method="LORA"
    )
    journal.jobs.add(NewJob("run-60", reference, WORK, (), tmp_path / "pin", elsewhere, "x"))
    journal.jobs.start("run-60", None)
    journal.jobs.finish("run-60", "succeeded", None)
    journal.close()
    value = run_quality(state, run.parent, "run", "")
    assert [(at.step, at.folder) for at in value.exports] == [
        (2, str(run / "step-2")), (4, str(run / "step-4")), (60, str(elsewhere))
    ]  # fmt: skip
    assert run_quality(state, tmp_path / "no output", "run", "").exports[0].step == 60, "an output may not be there yet"
