"""Graphs that run and are wrong: each defect is caught by the check that is meant for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import Verdict
from handlers.validate.workers.client import WorkerFailed
from tests.validate import artifacts
from tests.validate.conftest import Measured

pytestmark = pytest.mark.slow


def test_a_sound_graph_equals_the_model_it_came_from(measured: Measured, folders: dict[str, Path]) -> None:  # R3.2
    check = measured.check("onnx", folders["onnx"])
    assert check.verdict is Verdict.PASSED
    assert check.figures["error_max"] < 1e-4 and check.figures["agreement"] == 1.0
    assert check.figures["greedy_identical"] == check.figures["greedy_prompts"] == 4


def test_a_damaged_weight_fails_with_figures_and_limits(measured: Measured, folders: dict[str, Path], tmp_path: Path) -> None:  # R4.5
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    artifacts.damage_weight(folder, 0.5)
    check = measured.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    text = " | ".join(check.reasons)
    assert f"agreement {check.figures['agreement']:.3g} is below the limit 0.97" in text
    assert f"{check.figures['kl']:.3g} nats a token is above the limit 0.001" in text
    assert "it differs from the merged PyTorch model" in text
    assert check.remedy is not None and "validate.limits.onnx.agreement" in check.remedy
    assert "cache" not in text and "padded" not in text


@pytest.mark.parametrize("variant", ["onnx", "onnx-int8"])
def test_a_graph_that_ignores_the_attention_mask_is_caught_by_padding(
    variant: str, measured: Measured, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = artifacts.copy(folders[variant], tmp_path / variant)
    artifacts.ignore_input(folder, "attention_mask", 1)
    check = measured.check(variant, folder)
    assert check.verdict is Verdict.FAILED
    assert len(check.reasons) == 1 and "left-padded batch" in check.reasons[0], check.reasons


@pytest.mark.parametrize("variant", ["onnx", "onnx-int8"])
def test_a_graph_that_loses_its_cache_is_caught_by_its_own_single_pass(
    variant: str, measured: Measured, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = artifacts.copy(folders[variant], tmp_path / variant)
    artifacts.blank_cache(folder, "past_key_values.1.value")
    check = measured.check(variant, folder)
    assert check.verdict is Verdict.FAILED
    assert len(check.reasons) == 1 and "cached decoding" in check.reasons[0], check.reasons
    # A pass without a cache can't see it.
    assert check.figures["agreement"] >= 0.85


def test_a_graph_that_ignores_positions_differs_from_the_live_model(measured: Measured, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    artifacts.ignore_input(folder, "position_ids", 0)
    assert measured.check("onnx", folder).verdict is Verdict.FAILED


def test_a_tokenizer_that_gives_other_ids_fails_the_artifact(measured: Measured, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][1:]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    check = measured.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    assert len(check.reasons) == 1 and "its tokenizer gives other token ids" in check.reasons[0], check.reasons


def test_an_artifact_without_a_tokenizer_fails_and_says_what_is_missing(
    measured: Measured, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    (folder / "tokenizer.json").unlink()
    check = measured.check("onnx", folder)
    assert check.verdict is Verdict.FAILED and "there is no tokenizer.json" in check.reasons[0]
    assert check.figures["sample"]["text"] is None and check.figures["agreement"] == 1.0


def test_values_that_are_not_finite_are_an_error_and_not_a_figure(measured: Measured, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    artifacts.damage_weight(folder, float("inf"))
    with pytest.raises(WorkerFailed, match="not finite"):
        measured.check("onnx", folder)


def test_a_graph_with_other_inputs_is_refused_by_name(measured: Measured, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    artifacts.rename_input(folder, "past_key_values.0.key", "cache_key_0")
    with pytest.raises(WorkerFailed, match=r"unknown \['cache_key_0'\]"):
        measured.check("onnx", folder)


def test_a_graph_without_a_cache_is_run_over_all_tokens_at_each_step(measured: Measured, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    artifacts.drop_cache(folder)
    check = measured.check("onnx", folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["greedy_identical"] == check.figures["greedy_prompts"] and check.figures["agreement"] == 1.0
