"""What the stage says about artifacts that are right."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import Outcome, Verdict
from handlers.validate import record
from handlers.validate.files import expected
from tests.validate.conftest import Validated

NAMES = {
    "agreement", "kl", "error_max", "error_max_absolute", "error_mean_absolute", "logit_std", "positions", "greedy_identical",
    "greedy_prompts", "cache_error_max_absolute", "padding_error_max_absolute", "merged_error_max_absolute", "tokens_per_second",
    "pytorch_tokens_per_second", "speed_over_pytorch", "speed_over_pytorch_range", "prefill_seconds", "load_seconds", "peak_rss_bytes",
    "sample", "samples", "texts", "agreement_interval", "kl_interval", "perplexity", "perplexity_ratio", "perplexity_ratio_interval",
    "perplexity_tokens", "greedy_same", "greedy_same_median", "greedy_tokens_median", "fine_tuning", "fine_tuning_interval",
    "distance_from_live", "distance_from_base", "growth", "growth_interval", "cache_growth", "worst", "notes", "long", "by_text",
    "statistics", "decisions",
}  # fmt: skip


TWIN = {"twin_error", "twin_padding_error", "rounding_error", "rounding_slope"}


def test_sound_artifacts_pass_and_carry_every_figure(validated: Validated) -> None:  # R4.1 R4.3 R3.2
    assert {result.outcome for result in validated.results.values()} == {Outcome.SUCCEEDED}
    assert list(validated.checks) == ["pytorch", "onnx", "onnx-int8"]
    for variant, check in validated.checks.items():
        assert check.verdict is Verdict.PASSED, check.reasons
        assert check.reasons == () and check.remedy is None
        portable = {"pytorch": {"rounding_share", "merge_error"}, "onnx": {"needs"}, "onnx-int8": {"needs", "integer_products", *TWIN}}
        assert set(check.figures) == NAMES | portable[variant]
        limits = catalog().thresholds[variant]
        assert check.figures["agreement"] >= limits.agreement
        assert 0 < check.figures["kl"] <= limits.kl
        assert 0 < check.figures["error_max"] <= limits.error
        judged = [decision["limit"] for decision in check.figures["decisions"]]
        assert {"kl", "agreement", "perplexity", "error"} <= {*judged} and check.figures["decisions"][0]["texts"] == check.figures["texts"]


def test_live_merged_and_onnx_outputs_are_compared_with_each_other(validated: Validated) -> None:  # R4.2
    onnx, quantized = validated.checks["onnx"].figures, validated.checks["onnx-int8"].figures
    # bf16 rounding of the merged weights separates live from merged; the fp32 graph of the merged model adds next to nothing.
    assert onnx["error_max_absolute"] > 1e-3 > onnx["merged_error_max_absolute"]
    assert quantized["merged_error_max_absolute"] > onnx["error_max_absolute"]
    assert validated.figures["merged"]["error_max_absolute"] == validated.checks["pytorch"].figures["error_max_absolute"]


def test_speed_is_measured_in_turns_with_pytorch_and_memory_for_each_process(validated: Validated) -> None:  # R4.3
    for variant in ("onnx", "onnx-int8"):
        figures = validated.checks[variant].figures
        assert figures["tokens_per_second"] > 0 and figures["prefill_seconds"] > 0 and figures["load_seconds"] > 0
        low, high = figures["speed_over_pytorch_range"]
        assert 0 < low <= figures["speed_over_pytorch"] <= high and figures["pytorch_tokens_per_second"] > 0
        assert 20e6 < figures["peak_rss_bytes"] < validated.checks["pytorch"].figures["peak_rss_bytes"]
    assert validated.checks["pytorch"].figures["speed_over_pytorch"] is None


def test_the_stages_processes_themselves_import_no_heavy_library(validated: Validated) -> None:
    started = {name for name, result in validated.results.items() if set(result.versions) == {"python", "numpy"}}
    forked = {name for name, result in validated.results.items() if "torch" in result.versions}  # `tests.validate.light` sees to them
    assert "check-onnx" in started and {"reference", "merged", "speed"} <= forked and started | forked == validated.results.keys()


def test_the_reference_is_the_unmerged_adapter_and_its_effect_is_told(validated: Validated) -> None:
    reference = validated.figures["reference"]
    assert reference["dtype"] == "float32" and reference["method"] == "LORA adapter applied at run time, not merged"
    assert reference["adapter"]["kl"] > 10 * validated.checks["onnx"].figures["kl"]
    assert len(validated.figures["prompts"]) == 4
    shown = validated.figures["samples"]
    assert [one["prompt"] for one in shown] == validated.figures["prompts"] and all(one["base"] != one["text"] for one in shown)
    for check in validated.checks.values():
        assert [(one["prompt"], one["reference"]) for one in check.figures["samples"]] == [(one["prompt"], one["text"]) for one in shown]


@pytest.mark.slow
def test_each_check_leaves_a_comparison_for_each_prompt(validated: Validated) -> None:  # R4.4
    assert [sample["text"] for sample in validated.record("reference", "reference.json")["samples"]] == validated.figures["prompts"]
    for stage in ("merged", "check-onnx", "check-onnx-int8"):
        artifact = validated.record(stage, "check.json")
        figures, prompts = artifact["figures"], artifact["prompts"]
        assert len(prompts) == figures["greedy_prompts"] == 4
        assert max(prompt["error_max_absolute"] for prompt in prompts) == figures["error_max_absolute"]
        assert sum(prompt["positions"] for prompt in prompts) == figures["positions"]
        assert sum(prompt["greedy_identical"] for prompt in prompts) == figures["greedy_identical"]
    assert [entry.path for entry in validated.results["check-onnx"].files] == ["check.json"]


def test_outputs_can_be_moved_to_where_they_are_kept(validated: Validated, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(validated.folders["reference"], tmp_path / "kept"))
    reference, before = record.read_reference(moved), record.read_reference(validated.folders["reference"])
    assert [sample.logits.parent.parent for sample in reference.samples] == [moved] * 4
    assert reference.long is not None and reference.long.logits is not None and before.long is not None
    assert reference.long.logits.parent.parent == moved and reference.long == dataclasses.replace(before.long, logits=reference.long.logits)
    assert reference.files == moved / "files" and expected.read(reference.files) == expected.read(before.files) is not None
    same = dataclasses.replace(reference, samples=[], long=None, rare=None, files=before.files)
    assert same == dataclasses.replace(before, samples=[], long=None, rare=None)
    assert reference.rare is not None and reference.rare.logits is not None and reference.rare.logits.is_file()
    assert np.array_equal(np.load(reference.samples[3].logits), np.load(before.samples[3].logits))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"samples": 3}', '{"samples": [], "fallbacks": [], "subject": {}}'])
def test_a_reference_that_is_damaged_is_refused_with_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text(text)
    with pytest.raises(Permanent, match="read what an earlier stage of the validation found"):
        record.read_reference(tmp_path)
