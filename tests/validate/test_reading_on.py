"""Reading on: a verdict that the first texts leave open is decided by further ones, which serve no other purpose."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import ArtifactCheck, Outcome, Verdict
from daemon.contract.jobs.options import ValidateOptions
from handlers.texts.built_in import BUILT_IN, FURTHER
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.rows import Text
from handlers.texts.selection import choose_calibration, comparison_texts, further_texts
from handlers.validate import reading_on, record
from handlers.validate.checks.live.further import FurtherTexts
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import Continue
from tests.validate.conftest import LIMITS, Validate, Validated, attempt, context_of

QUICK: dict[str, Any] = {"samples": 2, "new_tokens": 6, "speed_tokens": 0, "long_tokens": 0}
Again = Callable[..., ArtifactCheck]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of the training."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    lines = [{"text": f"Number {number} is followed by {number + 1}, and before it comes {number - 1}."} for number in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def few(validate: Validate, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path], rows: Path) -> Validated:
    """A check by two texts, after which no more are read."""
    inputs = {"merge": folders["pytorch"], "onnx": folders["onnx"], "onnx-int8": folders["onnx-int8"]}
    return validate(pico_checkpoint, pico_base, inputs, **QUICK, data=str(rows))


@pytest.fixture
def again(few: Validated, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path], rows: Path, tmp_path: Path) -> Again:
    """Make the same check with other settings."""

    def run(**options: Any) -> ArtifactCheck:
        inputs = {"merge": folders["pytorch"], "onnx": folders["onnx"], "onnx-int8": folders["onnx-int8"], **few.folders}
        given = {**QUICK, "data": str(rows), **options}
        result = attempt(context_of(tmp_path, "check-onnx-int8", pico_checkpoint, pico_base, inputs, **given))
        assert result.outcome is Outcome.SUCCEEDED, result.fault
        return result.checks[0]

    return run


def _decisions(check: ArtifactCheck) -> dict[str, dict[str, Any]]:
    return {decision["limit"]: decision for decision in check.figures["decisions"]}


def test_two_texts_decide_nothing_and_more_are_read_until_all_is_decided(few: Validated, again: Again) -> None:
    first, check = few.checks["onnx-int8"], again(most_samples=32)
    assert "undecided" in {decision["outcome"] for decision in _decisions(first).values()}
    decisions = _decisions(check)
    assert check.verdict is Verdict.PASSED and {decision["outcome"] for decision in decisions.values()} == {"passed"}
    assert max(decision["looks"] for decision in decisions.values()) > 1 and 2 < decisions["error"]["texts"] <= 32
    same = ("kl", "agreement", "by_text", "texts", "positions", "perplexity", "samples")
    assert [check.figures[name] for name in same] == [first.figures[name] for name in same], "figures are of the first texts"
    assert any("undecided after 2 prompts" in note for note in first.figures["notes"])
    assert not any("undecided" in note for note in check.figures["notes"])


def test_a_budget_that_is_spent_leaves_it_undecided_and_what_is_configured_counts(few: Validated, again: Again) -> None:
    kl = few.checks["onnx-int8"].figures["kl"]
    check = again(limits={"onnx-int8": {"kl": kl}}, most_samples=4, undecided="reject")
    decision = _decisions(check)["kl"]
    assert decision["outcome"] == "undecided" and decision["texts"] == 4 and decision["looks"] == 2
    assert check.verdict is Verdict.FAILED
    (told,) = (sentence for sentence in (*check.reasons, *check.figures["notes"]) if sentence.startswith("KL "))
    assert "undecided after 4 prompts" in told and told.endswith('validate.undecided is "reject", so it counts as missed)')


def test_without_room_for_the_live_model_it_stays_undecided_with_the_reason(again: Again) -> None:
    notes = again(most_samples=8, memory=64 << 20).figures["notes"]
    assert any("because the live model needs" in note and "of memory beside it" in note for note in notes)


def test_a_worker_that_has_ended_takes_no_memory() -> None:
    """It is asked for its share before anything else finds out that it is gone."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert reading_on._resident(ended.pid) == 0 < reading_on._resident(os.getpid())


def test_further_texts_serve_no_other_purpose(rows: Path) -> None:
    options, plain = ValidateOptions(data=str(rows), samples=4), Rendering()
    compared, calibrating = comparison_texts(options, plain), choose_calibration(options, plain, 100)
    further, apart = further_texts(options, plain, 60)
    assert len(further) >= 8 and {text.text for text in further}.isdisjoint({*compared.plain, *calibrating.plain})
    for text in (*compared.plain, *calibrating.plain, *BUILT_IN, *FURTHER, *(text.text for text in further)):
        assert not apart.takes(Text(f" {text} "), of=Text(f" {text} ")), text
    assert apart.takes(Text("another one"), of=Text("another one"))
    assert further_texts(ValidateOptions(samples=4), plain, 60)[0] == []


def test_lines_of_prompts_that_calibrate_are_not_read_on(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    options = ValidateOptions(prompts=str(tmp_path / "prompts.txt"), samples=4)
    further, apart = further_texts(options, Rendering(), 60)
    assert further == [] and not any(apart.takes(Text(f"line {number}"), of=Text(f"line {number}")) for number in range(20))


@pytest.fixture(scope="module")
def live(validated: Validated, pico_base: Path, pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FurtherTexts]:
    """The live model of the pico checkpoint, with no texts of a data set."""
    folder = tmp_path_factory.mktemp("further")
    reference = record.read_reference(validated.folders["reference"])
    _, apart = further_texts(ValidateOptions(samples=4), Rendering.of(ModelFiles.in_folder(pico_base)), 0)
    with EngineWorker("live", EngineSpec(engine="live", folder=str(pico_checkpoint), base=str(pico_base)), folder, LIMITS) as worker:
        yield FurtherTexts(worker, reference, (), apart, True, folder, room=40)


def test_without_a_data_set_the_live_model_writes_texts_that_are_all_new(live: FurtherTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, written = EngineWorker.ask, list[Continue]()

    def noted(worker: EngineWorker, request: Any, **options: Any) -> Any:
        written.extend([request] if isinstance(request, Continue) else [])
        return ask(worker, request, **options)

    monkeypatch.setattr(EngineWorker, "ask", noted)
    samples = [sample for group in live.answered(12, lambda share, what: None) for sample in group]
    assert len(written) == 1 and len({len(ids) for ids in written[0].prompts}) == 1, "all of them side by side, and without padding"
    texts = [sample.text for sample in samples]
    assert len(samples) == 12 == len({*texts}) and {*texts}.isdisjoint({*BUILT_IN, *FURTHER})
    assert all(2 < len(sample.ids) <= 40 and sample.tokens == [] and sample.keep == list(range(len(sample.ids))) for sample in samples)
    assert all(0 < len(sample.base_rows) <= 16 and sample.base_logits is not None for sample in samples)
