"""An interrupted validation goes on after the last model that was examined, and reuses nothing that it has not verified."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.messages import Fallback, Outcome, StageContext, StageResult, Verdict
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.reference import Reference
from handlers.validate.checks.samples import Sample
from handlers.validate.resume import FOLDER, Kept
from tests.validate.conftest import Run, StartStage, Validated
from tests.validate.test_isolation import _wait_for_worker

OPTIONS = {"samples": 4, "new_tokens": 12, "speed_tokens": 24}
TIMES = {"tokens_per_second", "pytorch_tokens_per_second", "speed_over_pytorch", "prefill_seconds", "load_seconds", "peak_rss_bytes"}


def timeless(value: Any) -> Any:
    """The JSON value without figures of time and memory, which differ from run to run."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES | {"resumed"}}
    return [timeless(item) for item in value] if isinstance(value, list | tuple) else value


def again(context: StageContext) -> Run:
    """A further attempt: the staging folder renamed and handed on, everything temporary gone."""
    root = Path(context.staging).parent
    staging = root / f"staging-{context.attempt + 1}"
    Path(context.staging).rename(staging)
    shutil.rmtree(context.temporary, ignore_errors=True)
    further = context.model_copy(update={"attempt": context.attempt + 1, "staging": str(staging)})
    (root / "job.json").write_text(further.model_dump_json())
    command = [sys.executable, "-m", "handlers", str(root / "job.json")]
    return Run(further, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))


def killed(run: Run) -> StageContext:
    """Wait until the attempt has died of its fault; give its context."""
    _, errors = run.process.communicate(timeout=200)
    assert run.process.returncode == -signal.SIGKILL, errors.decode()[-2000:]
    return run.context


def assert_as_undisturbed(run: Run, result: StageResult, validated: Validated) -> None:
    assert result.outcome is Outcome.SUCCEEDED
    assert timeless([check.model_dump() for check in result.checks]) == timeless([c.model_dump() for c in validated.result.checks])
    assert timeless(result.figures) == timeless(validated.result.figures)
    assert timeless(json.loads(Path(run.context.staging, "validation.json").read_text())) == timeless(validated.report)
    assert os.listdir(run.context.staging) == ["validation.json"] == [entry.path for entry in result.files]


@pytest.fixture
def inputs(folders: dict[str, Path]) -> dict[str, Path]:
    return {"merge": folders["pytorch"], **folders}


def test_a_validation_killed_after_a_model_runs_none_of_them_again(  # R6.5
    start_stage: StartStage, pico_base: Path, pico_checkpoint: Path, inputs: dict[str, Path], validated: Validated, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("CKPTD_FAULT", "validate.reference.kept")
    context = killed(start_stage(pico_checkpoint, pico_base, inputs, **OPTIONS))
    monkeypatch.setenv("CKPTD_FAULT", "validate.examination.kept")
    context = killed(again(context))
    assert sorted(path.stem for path in Path(context.staging, FOLDER).glob("*.json")) == ["pytorch", "reference"]
    monkeypatch.delenv("CKPTD_FAULT")
    monkeypatch.setenv("CKPTD_FAULT_TRACE", str(tmp_path / "trace"))
    last = again(context)
    result = last.result()
    assert_as_undisturbed(last, result, validated)
    assert result.figures["resumed"] == ["reference", "pytorch"]
    passed = (tmp_path / "trace").read_text().split()
    assert [point for point in passed if point.startswith("validate.")] == [*["validate.examination.kept"] * 2, "validate.kept.removed"]


@pytest.mark.slow
def test_an_artifact_that_could_not_be_run_is_run_again_after_an_interruption(
    start_stage: StartStage, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CKPTD_FAULT", "validate.examination.kept")
    context = killed(start_stage(inputs["pytorch"], None, inputs, samples=2, new_tokens=8, speed_tokens=8))
    second = again(context)
    _wait_for_worker(second, "onnx").send_signal(signal.SIGSEGV)
    context = killed(second)
    monkeypatch.delenv("CKPTD_FAULT")
    result = again(context).result()
    assert result.figures["resumed"] == ["reference", "pytorch", "onnx-int8"]
    assert [check.verdict for check in result.checks] == [Verdict.PASSED] * 3


@pytest.mark.slow
def test_a_validation_killed_at_random_times_ends_as_an_undisturbed_one(
    start_stage: StartStage, pico_base: Path, pico_checkpoint: Path, inputs: dict[str, Path], validated: Validated
) -> None:  # R6.5
    seed = int(os.environ.get("CKPTD_TEST_SEED", str(time.time_ns())))
    print(f"CKPTD_TEST_SEED={seed}")
    chance = random.Random(seed)
    run = start_stage(pico_checkpoint, pico_base, inputs, **OPTIONS)
    for _ in range(8):
        time.sleep(chance.uniform(0.5, 9.0))
        if run.process.poll() is not None:
            break
        run.process.kill()
        run.process.communicate(timeout=60)
        if not Path(run.context.staging).exists():
            Path(run.context.staging).mkdir()  # killed before it began
        run = again(run.context)
    assert_as_undisturbed(run, run.result(), validated)


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"graph")
    return folder


FOUND = Examination({"kl": 0.25, "worst": float("inf")}, [{"tokens": [1, 2]}], None)


def reference_in(folder: Path, scale: float = 1.0) -> Reference:
    """A reference of two prompts whose logits lie in `folder`."""
    samples = []
    for number in range(2):
        path = folder / f"live-{number}.npy"
        np.save(path, scale * np.arange(6, dtype=np.float32).reshape(2, 3) / 7)
        samples.append(Sample("text", [1], [1], [2], "x", [0, 1], path))
    fallback = Fallback(wanted="a", taken="b", reason="c")
    return Reference(samples, 0.1 + 0.2, [1, 2], 8, True, {"tokens_per_second": 3.5}, {"kl": 1.5}, ["careful"], [fallback])


def fill(staging: Path, artifact: Path, made_for: Any = "work") -> None:
    """What an interrupted attempt leaves that had examined the merged model and one artifact."""
    kept = Kept(staging, made_for)
    kept.keep_reference(reference_in(kept.folder))
    np.save(kept.folder / "merged.npy", np.ones(3))
    kept.keep_examination("pytorch", str(artifact), FOUND, merged=False, logits=[kept.folder / "merged.npy"])
    kept.compare_with([kept.folder / "merged.npy"])
    kept.keep_examination("onnx", str(artifact), FOUND, merged=True)


def reused(staging: Path, artifact: Path, made_for: Any = "work", *, measured: float = 1.0) -> list[str]:
    """What a further attempt takes over; a reference that is not whole is measured again, as the stage does."""
    kept = Kept(staging, made_for)
    if kept.reference() is None:
        kept.keep_reference(reference_in(kept.folder, measured))
    if kept.examination("pytorch", str(artifact), merged=False) is None:
        np.save(kept.folder / "merged.npy", np.ones(3) * measured)
        kept.keep_examination("pytorch", str(artifact), FOUND, merged=False, logits=[kept.folder / "merged.npy"])
    kept.compare_with([kept.folder / "merged.npy"])
    kept.examination("onnx", str(artifact), merged=True)
    return kept.reused


def test_what_was_kept_comes_back_as_it_was_in_a_renamed_folder(staging: Path, artifact: Path) -> None:
    fill(staging, artifact)
    renamed = staging.rename(staging.with_name("staging-2"))
    kept = Kept(renamed, "work")
    assert kept.reference() == reference_in(renamed / FOLDER)
    assert kept.examination("pytorch", str(artifact), merged=False) == FOUND
    assert reused(renamed, artifact) == ["reference", "pytorch", "onnx"]
    kept.remove()
    assert list(renamed.iterdir()) == []


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def newer(path: Path) -> None:
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({**record, "key": "of another version"}))


def other_value(path: Path) -> None:
    path.write_text(path.read_text().replace("0.25", "0.26"))


CHANGES: dict[str, tuple[Callable[[Path, Path], Any], list[str]]] = {
    # A reference that is measured again and says the same leaves the examinations good.
    "logits flipped": (lambda kept, artifact: flip(kept / "live-1.npy"), ["pytorch", "onnx"]),
    "logits cut": (lambda kept, artifact: os.truncate(kept / "live-0.npy", 100), ["pytorch", "onnx"]),
    "logits gone": (lambda kept, artifact: (kept / "live-0.npy").unlink(), ["pytorch", "onnx"]),
    "reference torn": (lambda kept, artifact: os.truncate(kept / "reference.json", 200), ["pytorch", "onnx"]),
    "reference garbage": (lambda kept, artifact: (kept / "reference.json").write_bytes(b"\xff\x00"), ["pytorch", "onnx"]),
    "merged logits flipped": (lambda kept, artifact: flip(kept / "merged.npy"), ["reference", "onnx"]),
    "examination torn": (lambda kept, artifact: os.truncate(kept / "onnx.json", 50), ["reference", "pytorch"]),
    "examination foreign": (lambda kept, artifact: (kept / "onnx.json").write_text("[]"), ["reference", "pytorch"]),
    "examination of another version": (lambda kept, artifact: newer(kept / "onnx.json"), ["reference", "pytorch"]),
    "a figure changed": (lambda kept, artifact: other_value(kept / "onnx.json"), ["reference", "pytorch"]),
    "artifact rewritten": (lambda kept, artifact: os.utime(artifact / "model.onnx", ns=(1, 1)), ["reference"]),
    "artifact grown": (lambda kept, artifact: (artifact / "more").write_text("x"), ["reference"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_what_is_whole_and_of_the_same_inputs_is_reused(staging: Path, artifact: Path, change: str) -> None:
    fill(staging, artifact)
    act, expected = CHANGES[change]
    act(staging / FOLDER, artifact)
    assert reused(staging, artifact) == expected


def test_examinations_against_another_reference_are_not_reused(staging: Path, artifact: Path) -> None:
    fill(staging, artifact)
    (staging / FOLDER / "live-0.npy").unlink()
    assert reused(staging, artifact, measured=2.0) == []


def test_other_prompts_or_models_reuse_nothing(staging: Path, artifact: Path) -> None:
    fill(staging, artifact)
    assert reused(staging, artifact, "other work") == []


def test_foreign_files_in_the_staging_folder_are_removed(staging: Path, artifact: Path) -> None:
    fill(staging, artifact)
    (staging / "validation.json").write_text("half")
    (staging / "folder").mkdir()
    (staging / "link").symlink_to(artifact)
    assert reused(staging, artifact) == ["reference", "pytorch", "onnx"]
    assert os.listdir(staging) == [FOLDER]
    assert (artifact / "model.onnx").exists()
