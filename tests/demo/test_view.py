"""What the demo shows: live picture, lines, closing table; and its exit code, from snapshots and reports written by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from daemon.cli.demo import ASKED, results
from daemon.cli.demo.setup import configure
from daemon.cli.demo.view import Training, changes, live
from daemon.config.loading import load
from daemon.operating.monitoring.status import DaemonState, JobStatus, Snapshot, StageStatus

NAMES = ("merge", "pytorch", "onnx", "onnx-int8", "reference", "report")
VARIANTS = ("pytorch", "onnx", "onnx-int8")


def stage(name: str, state: str, **values: Any) -> StageStatus:
    return StageStatus(
        **{"name": name, "state": state, "attempts": 1, "fraction": None, "message": None, "seconds": None, "error": None, **values}
    )


def job(step: int, state: str, stages: list[StageStatus], target: Path | str = "/exports", **values: Any) -> JobStatus:
    named = dict.fromkeys(("started", "ended", "base", "loss", "epoch", "rank", "best_metric", "evaluation", "waiting_for", "error"))
    plain: dict[str, Any] = {
        **named,
        "created": "now",
        "checkpoint": "/runs",
        "method": "LORA",
        "ending": False,
        "paused": False,
        "warnings": (),
        "artifacts": {},
    }
    given = {"id": f"job-{step}", "run": "asyncio", "step": step, "state": state, "target": str(target), "stages": tuple(stages)}
    return JobStatus(**{**plain, **given, **values})


def snapshot(*jobs: JobStatus) -> Snapshot:
    daemon = DaemonState(running=True, pid=4711, started=None, healthy=True, configuration=None, journal=None)
    return Snapshot("1", "/state", daemon, None, None, (), (), {}, {}, (), (), jobs, {}, {}, ())


def at_80_columns(renderable: RenderableType) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=False).print(renderable)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return text


def write_export(target: Path, step: int, **verdicts: str) -> JobStatus:
    """An export's folder with a report, and the job that a snapshot shows for it."""
    artifacts = []
    for variant in VARIANTS:
        verdict = verdicts.get(variant.replace("-", "_"), "passed")
        passed = verdict == "passed"
        if passed:
            (target / variant).mkdir(parents=True)
            (target / variant / "model").write_bytes(b"weights")
        artifacts.append(
            {
                "variant": variant, "verdict": verdict, "published": passed, "folder": variant if passed else None,
                "reasons": [] if passed else ["the logits are not finite"], "size_bytes": 3_586_130, "size_ratio": 1.987,
                "figures": {"agreement": 0.9876, "error_max": 0.0123, "tokens_per_second": 812.3, "speed_over_pytorch": 3.48},
            }
        )  # fmt: skip
    target.mkdir(exist_ok=True)
    (target / "report.json").write_text(json.dumps({"artifacts": artifacts}))
    ended = [stage(name, "succeeded", seconds=2.0) for name in NAMES]
    return job(step, "succeeded", ended, target, artifacts={entry["variant"]: entry["verdict"] for entry in artifacts})


def trained() -> Training:
    training = Training("fine-tuning")
    for event in (
        {"event": "step", "step": 5, "fraction": 0.05, "loss": 4.5},
        {"event": "checkpoint", "step": 50, "folder": "/runs/asyncio/checkpoint-50"},
        {"event": "checkpoint", "step": 100, "folder": "/runs/asyncio/checkpoint-100"},
        {"event": "rotated", "folder": "/runs/asyncio/checkpoint-50"},
        {"event": "step", "step": 100, "fraction": 1.0, "loss": 3.25},
    ):
        training.take(event)
    return training


def test_the_live_picture_shows_training_stages_and_verdicts_within_80_columns() -> None:
    half = [
        stage("merge", "succeeded", seconds=3.2),
        stage("pytorch", "succeeded"),
        stage("onnx", "running", fraction=0.4, message="x" * 90),
    ]
    waiting = [stage(name, "waiting") for name in NAMES[3:]]
    verdicts = {"pytorch": "passed", "onnx": "unverified", "onnx-int8": "failed"}
    text = at_80_columns(
        live(
            [Training("base model"), trained()],
            snapshot(
                job(100, "partial", [stage(name, "succeeded") for name in NAMES], artifacts=verdicts),
                job(50, "running", half + waiting),
            ),
            12.3,
        )
    )
    assert "step 100  loss 4.50 → 3.25" in text
    assert "process 4711" in text and "12 s" in text
    assert text.index("checkpoint-50") < text.index("checkpoint-100")
    assert "onnx 40 %" in text and "✓ merge 3 s" in text and "· reference" in text
    assert "deleted by the trainer" in text
    assert "partial  pytorch passed  onnx unverified" in text


def test_the_stages_of_a_job_fit_into_one_line() -> None:
    stages = [stage(name, "succeeded", seconds=41.0) for name in NAMES[:-1]] + [stage("report", "running")]
    lines = at_80_columns(live([], snapshot(job(50, "running", stages)), 1)).splitlines()
    assert lines[-1].rstrip() == "  ✓ merge 41 s  ✓ pytorch 41 s  ✓ onnx 41 s  ✓ onnx-int8 41 s  ✓ reference 41 s…"
    quick = [stage(name, "succeeded", seconds=0.1) for name in NAMES[:2]] + stages[2:]
    assert at_80_columns(live([], snapshot(job(50, "running", quick)), 1)).rstrip().endswith("▸ report")


def test_a_failed_jobs_sentence_is_shown() -> None:
    text = at_80_columns(live([], snapshot(job(50, "failed", [stage("merge", "failed")], error="Could not merge: no base.")), 1))
    assert "failed" in text and "Could not merge: no base." in text


def test_without_a_terminal_each_thing_that_happens_is_a_line() -> None:
    pending = job(50, "pending", [stage(name, "waiting") for name in NAMES])
    started = job(50, "running", [stage("merge", "succeeded", seconds=2.04), stage("onnx", "running"), stage("report", "waiting")])
    ended = [stage("merge", "succeeded"), stage("onnx", "failed", error="no memory"), stage("report", "succeeded", seconds=1.0)]
    finished = job(50, "partial", ended, artifacts={"pytorch": "passed", "onnx": "failed"})
    assert changes(snapshot(), snapshot(pending)) == ["ckptd: found checkpoint-50"]
    assert changes(snapshot(pending), snapshot(started)) == [
        "ckptd: checkpoint-50: merge succeeded in 2.04 s",
        "ckptd: checkpoint-50: onnx running",
    ]
    assert changes(snapshot(started), snapshot(finished)) == [
        "ckptd: checkpoint-50: onnx failed: no memory",
        "ckptd: checkpoint-50: report succeeded in 1 s",
        "ckptd: checkpoint-50 partial: pytorch passed, onnx failed",
    ]
    assert changes(snapshot(finished), snapshot(finished)) == []


def test_a_trainings_lines_are_few_and_say_what_was_written_and_deleted() -> None:
    training = Training("base model")
    steps = [training.take({"event": "step", "step": step, "fraction": step / 100, "loss": 8 - step / 25}) for step in range(1, 101)]
    assert len([line for line in steps if line]) == 4
    assert (
        training.take({"event": "rotated", "folder": "/r/checkpoint-7"})
        == "base model: the trainer deleted checkpoint-7 (save_total_limit=1)"
    )
    assert training.take({"event": "something new"}) is None
    saved = training.take({"event": "saved", "parameters": 853_056, "bytes": 1_800_000, "loss": 4})
    assert saved == "base model: done, loss 7.96 → 4.00"
    assert training.state == "done"


def test_when_each_artifact_passed_the_table_has_its_figures_and_the_exit_code_is_0(tmp_path: Path) -> None:
    shown = snapshot(write_export(tmp_path / "50", 50), write_export(tmp_path / "100", 100))
    rows = results.rows_of(shown, [50, 100], VARIANTS)
    assert results.exit_code(rows) == 0 and results.complaints(rows) == []
    text = at_80_columns(results.table(rows))
    for word in ("50", "100", "onnx-int8", "3.42", "2.0 ×", "0.0123 σ", "98.8 %", "812", "3.5 ×", "passed"):
        assert word in text
    assert text.count("passed") == 6


def test_an_artifact_that_failed_gives_exit_code_1_and_its_reason(tmp_path: Path) -> None:
    rows = results.rows_of(snapshot(write_export(tmp_path / "50", 50, onnx_int8="failed")), [50], VARIANTS)
    assert results.exit_code(rows) == 1
    assert results.complaints(rows) == ["checkpoint-50, onnx-int8: failed: the logits are not finite"]


def test_an_artifact_that_was_not_verified_is_not_good(tmp_path: Path) -> None:
    rows = results.rows_of(snapshot(write_export(tmp_path / "50", 50, pytorch="unverified")), [50], VARIANTS)
    assert results.exit_code(rows) == 1


def test_a_checkpoint_without_a_job_gives_exit_code_1(tmp_path: Path) -> None:
    rows = results.rows_of(snapshot(write_export(tmp_path / "50", 50)), [50, 100], VARIANTS)
    assert results.exit_code(rows) == 1
    assert [row.verdict for row in rows] == ["passed"] * 3 + ["missing"] * 3
    assert at_80_columns(results.table(rows)).count("missing") == 3
    assert results.complaints(rows) == ["checkpoint-100, pytorch, onnx, onnx-int8: missing: the checkpoint was not exported"]


def test_an_artifact_whose_folder_is_gone_is_missing_whatever_the_report_says(tmp_path: Path) -> None:
    shown = snapshot(write_export(tmp_path / "50", 50))
    (tmp_path / "50" / "onnx" / "model").unlink()
    rows = results.rows_of(shown, [50], VARIANTS)
    assert [row.verdict for row in rows] == ["passed", "missing", "passed"] and results.exit_code(rows) == 1


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_report_that_can_not_be_read_gives_missing_artifacts(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    rows = results.rows_of(snapshot(job(50, "failed", [], tmp_path, error="Could not merge.")), [50], VARIANTS)
    assert {row.verdict for row in rows} == {"missing"} and results.exit_code(rows) == 1
    assert rows[0].why == "Could not merge."


def test_no_checkpoint_at_all_is_no_success() -> None:
    assert results.exit_code(results.rows_of(snapshot(), [], VARIANTS)) == 1


def test_the_closing_table_asks_for_what_the_demos_daemon_exports(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert load(configure(tmp_path, 1)).variants == ASKED
