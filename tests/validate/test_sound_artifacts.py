"""What the stage says about artifacts that are right."""

from __future__ import annotations

from daemon.contract.catalog import catalog
from daemon.contract.messages import Outcome, Verdict
from tests.validate.conftest import Validated

NAMES = {
    "agreement", "kl", "error_max", "error_max_absolute", "error_mean_absolute", "logit_std", "positions", "greedy_identical",
    "greedy_prompts", "cache_error_max_absolute", "padding_error_max_absolute", "merged_error_max_absolute", "tokens_per_second",
    "pytorch_tokens_per_second", "speed_over_pytorch", "prefill_seconds", "load_seconds", "peak_rss_bytes", "sample",
}  # fmt: skip


def test_sound_artifacts_pass_and_carry_every_figure(validated: Validated) -> None:  # R4.1 R4.3 R3.2
    assert validated.result.outcome is Outcome.SUCCEEDED
    assert list(validated.checks) == ["pytorch", "onnx", "onnx-int8"]
    for variant, check in validated.checks.items():
        assert check.verdict is Verdict.PASSED, check.reasons
        assert check.reasons == () and check.remedy is None
        portable = {"pytorch": set(), "onnx": {"needs"}, "onnx-int8": {"needs", "integer_products"}}
        assert set(check.figures) == NAMES | portable[variant]
        limits = catalog().thresholds[variant]
        assert check.figures["agreement"] >= limits.agreement
        assert 0 < check.figures["kl"] <= limits.kl
        assert 0 < check.figures["error_max"] <= limits.error


def test_live_merged_and_onnx_outputs_are_compared_with_each_other(validated: Validated) -> None:  # R4.2
    onnx, quantized = validated.checks["onnx"].figures, validated.checks["onnx-int8"].figures
    # bf16 rounding of the merged weights separates live from merged; the fp32 graph of the merged model adds next to nothing.
    assert onnx["error_max_absolute"] > 1e-3 > onnx["merged_error_max_absolute"]
    assert quantized["merged_error_max_absolute"] > onnx["error_max_absolute"]
    assert validated.result.figures["merged"]["error_max_absolute"] == validated.checks["pytorch"].figures["error_max_absolute"]


def test_speed_is_measured_in_turns_with_pytorch_and_memory_for_each_process(validated: Validated) -> None:  # R4.3
    for variant in ("onnx", "onnx-int8"):
        figures = validated.checks[variant].figures
        assert figures["tokens_per_second"] > 0 and figures["prefill_seconds"] > 0 and figures["load_seconds"] > 0
        assert figures["speed_over_pytorch"] > 0 and figures["pytorch_tokens_per_second"] > 0
        assert 20e6 < figures["peak_rss_bytes"] < validated.checks["pytorch"].figures["peak_rss_bytes"]
    assert validated.checks["pytorch"].figures["speed_over_pytorch"] is None


def test_the_stage_process_itself_imports_no_heavy_library(validated: Validated) -> None:
    assert set(validated.result.versions) == {"python", "numpy"}


def test_the_reference_is_the_unmerged_adapter_and_its_effect_is_told(validated: Validated) -> None:
    reference = validated.result.figures["reference"]
    assert reference["dtype"] == "float32" and reference["method"] == "LORA adapter applied at run time, not merged"
    assert reference["adapter"]["kl"] > 10 * validated.checks["onnx"].figures["kl"]
    assert len(validated.result.figures["prompts"]) == 4


def test_the_report_file_holds_a_comparison_for_each_prompt(validated: Validated) -> None:  # R4.4
    assert [entry.path for entry in validated.result.files] == ["validation.json"]
    assert [prompt["text"] for prompt in validated.report["prompts"]] == validated.result.figures["prompts"]
    for artifact in validated.report["artifacts"]:
        figures, prompts = artifact["figures"], artifact["prompts"]
        assert len(prompts) == figures["greedy_prompts"] == 4
        assert max(prompt["error_max_absolute"] for prompt in prompts) == figures["error_max_absolute"]
        assert sum(prompt["positions"] for prompt in prompts) == figures["positions"]
        assert sum(prompt["greedy_identical"] for prompt in prompts) == figures["greedy_identical"]
