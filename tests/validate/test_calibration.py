"""The stage `calibration`: what it leaves is for all that calibrate, and none of it is compared on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.jobs.messages import Outcome
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.plan import plan, spec_of
from handlers.texts import selection, split
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.selection import comparison_texts
from handlers.validate.calibration import SAMPLED, starts
from handlers.validate.workers.decoding import DRAWN_FROM, drawn
from tests.validate.conftest import StartStage
from tests.validate.test_texts import conversations


@pytest.mark.slow
def test_the_live_model_writes_texts_where_the_configuration_names_none_and_the_same_ones_again(
    start_stage: StartStage, folders: dict[str, Path], pico_base: Path, pico_checkpoint: Path
) -> None:  # R2.6
    runs = [start_stage("calibration", pico_checkpoint, pico_base, {"merge": folders["pytorch"]}, samples=4) for _ in range(2)]
    results = [run.result() for run in runs]
    assert results[0].outcome is Outcome.SUCCEEDED, results[0].fault
    assert results[0].figures == results[1].figures, "a fixed seed"
    assert results[0].figures["sources"][selection.SAMPLED_SOURCE] == SAMPLED and not results[0].fallbacks
    texts = selection.read(Path(runs[0].context.staging), 64)
    assert len(texts.plain) == results[0].figures["texts"] and len(set(texts.plain[:SAMPLED])) == SAMPLED
    assert any(one.startswith("<|user|>") for one in texts.plain[:SAMPLED]), "a chat model is asked through its template"
    compared = comparison_texts(ValidateOptions(samples=4), Rendering.of(ModelFiles.in_folder(folders["pytorch"])))
    assert not {split.normal(one) for one in texts.plain} & {split.normal(one) for one in compared.plain}


@pytest.mark.slow
def test_a_live_model_that_cannot_be_run_leaves_built_in_texts_and_says_so(
    start_stage: StartStage, folders: dict[str, Path], pico_base: Path, tmp_path: Path
) -> None:  # R6.2
    (tmp_path / "pin").mkdir()
    result = start_stage("calibration", tmp_path / "pin", pico_base, {"merge": folders["pytorch"]}).result()
    assert result.outcome is Outcome.SUCCEEDED, result.fault
    (fallback,) = result.fallbacks
    assert (fallback.wanted, fallback.taken) == (selection.SAMPLED_SOURCE, selection.BUILT_IN_SOURCE) and fallback.reason
    assert list(result.figures["sources"]) == [selection.BUILT_IN_SOURCE] and not result.reusable


def test_no_model_is_loaded_where_the_data_is_enough(
    start_stage: StartStage, folders: dict[str, Path], pico_base: Path, tmp_path: Path
) -> None:
    data = conversations(tmp_path / "data", 200)
    (tmp_path / "pin").mkdir()  # nothing could be loaded from it
    result = start_stage("calibration", tmp_path / "pin", pico_base, {"merge": folders["pytorch"]}, data=str(data)).result()
    assert result.outcome is Outcome.SUCCEEDED and not result.fallbacks and result.reusable
    assert result.figures["sources"][f"{data} (validate.data)"] > 50


def test_only_plans_with_a_form_that_is_calibrated_have_the_stage() -> None:
    names = [spec.name for spec in plan(["onnx-int8-static"])]
    assert names.index("merge") < names.index("calibration") < names.index("onnx-int8-static")
    assert "calibration" not in [spec.name for spec in plan(["pytorch", "onnx", "onnx-int8", "onnx-int4"])]
    assert {"validation.prompts", "validation.data", "validation.samples"} <= set(spec_of("calibration").settings)


@given(st.integers(0, 2**31), st.lists(st.floats(-30, 30), min_size=1, max_size=200))
def test_a_drawn_token_is_one_of_the_most_likely_ones(seed: int, logits: list[float]) -> None:
    values = np.array(logits, np.float32)
    first = [drawn(seed)(values) for _ in range(2)]
    assert first[0] == first[1]
    assert (values > values[first[0]]).sum() < DRAWN_FROM


@pytest.mark.parametrize("count", [1, 12, 40])
def test_starts_are_short_and_of_different_texts(count: int) -> None:
    found = starts(Rendering(), count)
    assert len(found) == len(set(found)) == count and all(len(one.split()) <= 8 for one in found)
