"""Limits, reasons, figures and prompts: the parts that need no model."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.faults.errors import Permanent
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.plan import spec_of
from handlers.texts.built_in import BUILT_IN
from handlers.texts.rendering import Rendering
from handlers.texts.selection import comparison_texts
from handlers.validate import findings
from handlers.validate.arithmetic.comparison import Comparison, Spread
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.live.reference import evenly
from handlers.validate.folders import configs
from handlers.validate.verdict import judge, unrunnable
from handlers.validate.workers.client import WorkerFailed

LIMITS = Thresholds(agreement=0.85, kl=0.05, error=2.0)
AT_THE_LIMITS: dict[str, Any] = {
    "agreement": 0.85, "kl": 0.05, "error_max": 2.0, "logit_std": 1.5, "positions": 100,
    "cache_error_max_absolute": 1e-4, "padding_error_max_absolute": 1e-4, "merged_error_max_absolute": 1e-4,
}  # fmt: skip


def _judge(variant: str = "onnx-int8", limits: Thresholds | None = LIMITS, **changes: Any) -> Any:
    return judge(variant, catalog().variants[variant].limits, Examination(CheckFigures(**AT_THE_LIMITS | changes)), limits)


def test_figures_at_the_limits_pass() -> None:
    assert _judge().verdict is Verdict.PASSED


@pytest.mark.parametrize(
    ("key", "value", "threshold"), [("agreement", 0.84, "agreement"), ("kl", 0.051, "kl"), ("error_max", 2.1, "error")]
)
def test_each_threshold_is_respected_and_named_in_the_remedy(key: str, value: float, threshold: str) -> None:
    check = _judge(**{key: value})
    assert check.verdict is Verdict.FAILED and len(check.reasons) == 1
    assert f"{value:.3g}" in check.reasons[0] and f"limit {getattr(LIMITS, threshold):.3g}" in check.reasons[0]
    taken = "use the variant onnx-int8-weight instead of onnx-int8"
    assert check.remedy == f"{taken}, or relax validate.limits.onnx-int8.{threshold} if you accept the difference"


@pytest.mark.parametrize("key", ["kl", "error_max", "agreement", "cache_error_max_absolute", "padding_error_max_absolute"])
def test_a_figure_that_is_not_a_number_never_passes(key: str) -> None:
    assert _judge(**{key: math.nan}).verdict is Verdict.FAILED


def test_of_a_batch_whose_rows_share_a_scale_the_mask_is_judged_in_float_and_the_rest_by_the_limit_of_error() -> None:
    alone = _judge(error_max=0.45, padding_error_max_absolute=0.9 * 1.5)
    assert "0.9 standard deviations of the logits, above the limit 0.675: it does not honour the attention mask" in alone.reasons[0]
    honoured = {"twin_error": 1e-6, "twin_padding_error": 1e-6}
    assert _judge(error_max=0.45, padding_error_max_absolute=0.9 * 1.5, **honoured).verdict is Verdict.PASSED
    coarse = _judge(error_max=0.45, padding_error_max_absolute=2.1 * 1.5, **honoured)
    assert "by 2.1 standard deviations of the logits, above the limit 2: it honours the attention mask, but one scale" in coarse.reasons[0]
    assert coarse.of_precision and coarse.remedy == "use the variant onnx-int8-weight instead of onnx-int8"
    assert _judge(padding_error_max_absolute=math.nan, **honoured).verdict is Verdict.FAILED


def test_without_thresholds_an_artifact_is_unverified_with_the_reason() -> None:
    check = _judge(limits=None, agreement=0.1)
    assert check.verdict is Verdict.UNVERIFIED
    assert "no thresholds for onnx-int8" in check.reasons[0] and check.remedy is not None and "validate.limits.onnx-int8" in check.remedy


def test_a_defect_fails_even_without_thresholds() -> None:
    assert _judge(limits=None, cache_error_max_absolute=9.0).verdict is Verdict.FAILED


def test_self_consistency_is_strict_for_fp32_and_allows_quantization_noise_for_int8() -> None:
    noise = {"cache_error_max_absolute": 0.5, "padding_error_max_absolute": 0.5, "error_max": 0.2}
    assert _judge("onnx-int8", **noise).verdict is Verdict.PASSED
    check = _judge("onnx", **noise)
    assert check.verdict is Verdict.FAILED and len(check.reasons) == 2


def test_the_divergence_and_the_agreement_are_those_of_the_formulas() -> None:
    reference = np.log(np.array([[0.5, 0.25, 0.25], [0.7, 0.2, 0.1]], dtype=np.float32)) + 3.0
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.7, 0.2, 0.1]], dtype=np.float32)) - 1.0
    comparison = Comparison()
    summary = comparison.add(reference, other).summary
    figures = comparison.figures(2.0)
    assert figures.kl == pytest.approx(0.25 * math.log(2) / 2, rel=1e-5) == summary.kl
    assert figures.agreement == 0.5 and figures.positions == 2
    assert figures.error_max is not None
    assert figures.error_max_absolute == pytest.approx(4 + math.log(2), rel=1e-5) == 2 * figures.error_max


@given(st.lists(st.lists(st.floats(-50, 50), min_size=3, max_size=3), min_size=1, max_size=40))
def test_sums_over_pieces_equal_the_figures_of_the_whole(rows: list[list[float]]) -> None:
    logits = np.array(rows, dtype=np.float32)
    other = logits[:, ::-1] * 0.5
    whole, pieces, spread = Comparison(), Comparison(), Spread()
    whole.add(logits, other)
    for start in range(0, len(logits), 7):
        pieces.add(logits[start : start + 7], other[start : start + 7])
        spread.add(logits[start : start + 7])
    for name, value in whole.figures(1.0).given.items():
        if name == "texts" or name.endswith("_interval"):  # each piece counts as a text
            continue
        assert pieces.figures(1.0).given[name] == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert spread.std == pytest.approx(float(logits.astype(np.float64).std()), rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("other", [np.zeros((2, 4), np.float32), np.full((2, 3), np.nan, np.float32)])
def test_logits_of_another_shape_or_not_finite_are_refused(other: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"shape|finite"):
        Comparison().add(np.zeros((2, 3), np.float32), other)


@given(st.integers(1, 500), st.integers(1, 100))
def test_thinned_positions_are_in_range_sorted_and_bounded(length: int, most: int) -> None:
    kept = evenly(length, most)
    assert kept == sorted(set(kept)) and 0 < len(kept) <= most and kept[0] == 0 and kept[-1] <= length - 1
    assert most == 1 or kept[-1] == length - 1


def test_prompts_come_from_the_file_and_too_few_are_told(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("eins\n\nzwei €\n", encoding="utf-8")
    texts = comparison_texts(ValidateOptions(prompts=str(path), samples=5), Rendering())
    assert texts.plain == ["eins", "zwei €"] and len(texts.warnings) == 1 and "5 samples" in texts.warnings[0]
    built_in = comparison_texts(ValidateOptions(samples=6), Rendering())
    assert (built_in.plain, built_in.warnings) == (list(BUILT_IN[:6]), ())


@pytest.mark.parametrize(
    ("content", "code"), [(None, "prompts-not-found"), (b"\xff\xfe\x00", "prompts-not-text"), (b"\n \n", "prompts-empty")]
)
def test_a_prompts_file_that_is_no_use_is_a_clear_error(content: bytes | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Permanent) as caught:
        comparison_texts(ValidateOptions(prompts=str(path)), Rendering())
    assert caught.value.fault.code == code and "validate.prompts" in caught.value.fault.remedy


def test_a_tokenizer_that_its_stage_left_behind_is_proposed_to_be_copied() -> None:
    finding = findings.tokenizer("its tokenizer can't be used: the folder holds no tokenizer files")
    examination = Examination(CheckFigures(**AT_THE_LIMITS), findings=[finding])
    check = judge("onnx-int8", catalog().variants["onnx-int8"].limits, examination, LIMITS)
    assert check.verdict is Verdict.FAILED
    assert check.remedy is not None and "the format did not copy it as it is" in check.remedy


WEIGHTS = "its weights are not those of the merge: model.norm.weight is missing. So it is damaged, or of another checkpoint"


def test_other_weights_or_settings_fail_an_artifact_at_its_limits_and_no_less_quantized_form_is_made_for_it() -> None:
    settings = "its config.json is not that of the model that it was made of: n is 1 instead of 2"
    for told in (findings.weights(WEIGHTS, "onnx-int8"), findings.changed("config", settings)):
        examination = Examination(CheckFigures(**AT_THE_LIMITS | {"kl": 0.06}), findings=[told])
        check = judge("onnx-int8", catalog().variants["onnx-int8"].limits, examination, LIMITS)
        assert check.verdict is Verdict.FAILED and not check.of_precision
        assert check.reasons[0] == told.reason and len(check.reasons) == 2
    assert _judge(kl=0.06).of_precision


def test_what_was_known_before_an_artifact_could_not_be_run_on_is_named_first() -> None:
    crashed = WorkerFailed("it ended by itself", "look at the log", of_precision=True)
    tokenizer = findings.tokenizer("its tokenizer is another")
    check = unrunnable("pytorch-w4a16", crashed, [findings.weights(WEIGHTS, "pytorch-w4a16"), tokenizer])
    assert check.reasons == (WEIGHTS, tokenizer.reason, "it could not be run: it ended by itself") and not check.of_precision
    assert check.remedy.startswith("run `ckptd queue retry`") and check.remedy.endswith("; look at the log")
    alone = unrunnable("pytorch-w4a16", crashed)
    assert alone.reasons == check.reasons[2:] and alone.of_precision and alone.remedy == "look at the log"


ROPE = {"rope_type": "default", "rope_theta": 1e6}
SETTINGS: dict[str, Any] = {
    "model_type": "qwen3", "dtype": "float32", "rms_norm_eps": 1e-6, "num_attention_heads": 4, "rope_parameters": ROPE, "use_cache": True,
    "text": {"dtype": "float32", "layers": [1, 2]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "bfloat16", "quantization_config": {"load_in_4bit": True}, "text": {"dtype": "bfloat16", "layers": [1, 2]}}, None),
        ({"torch_dtype": "bfloat16", "rope_theta": 1e6}, None),
        ({"rope_theta": 1e4}, "rope_theta is 10000.0 instead of 1000000.0"),
        ({"rope_parameters": {**ROPE, "rope_theta": 100.0}}, "rope_parameters.rope_theta is 100.0 instead of 1000000.0"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05 instead of 1e-06"),
        ({"num_attention_heads": 2, "use_cache": 1}, "num_attention_heads is 2 instead of 4, use_cache is 1 instead of True"),
        ({"text": {"layers": [2, 1]}}, r"text.layers is \[2, 1\] instead of \[1, 2\]"),
        ({"text": {}}, "text.layers is not set instead of .*text is {} instead of not set"),
        ({"attn_scale": 3}, "attn_scale is 3 instead of not set"),
        ({"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}, ".*, c is 1 instead of not set, and 2 more$"),
    ],
)
def test_settings_are_those_of_the_model_that_it_was_made_of(change: dict[str, Any], words: str | None) -> None:
    told = configs.difference({**SETTINGS, **change}, SETTINGS)
    if words is None:
        assert told is None
    else:
        assert told is not None and re.search(f"its config.json is not that of the model that it was made of: {words}", told)


def test_a_form_with_keys_of_its_own_has_the_models_too() -> None:
    assert configs.difference({**SETTINGS, "own": 1}, SETTINGS, added=True) is None
    assert configs.difference({**SETTINGS, "own": 1, "rms_norm_eps": 1.0}, SETTINGS, added=True) is not None
    assert configs.difference({"own": 1}, SETTINGS, added=True) is not None


def test_the_check_of_every_smaller_form_of_pytorch_reads_the_merge() -> None:
    for name, variant in catalog().variants.items():
        if variant.form_of == "pytorch":
            assert "merge" in spec_of(f"check-{name}").needs, name
