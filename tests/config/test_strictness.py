"""`validate.strictness` and `validate.limits`: which numbers an artifact is judged by."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemon.config.settings import Settings
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.options import ValidateOptions, Work

EXACT, HALF, COARSE, EIGHT, FOUR = (0.97, 0.001, 0.25), (0.96, 0.002, 0.3), (0.85, 0.05, 2.0), (0.9, 0.02, 1.0), (0.8, 0.1, 3.0)
BFLOAT, W8A8 = (0.95, 0.005, 0.5), (0.9, 0.02, 1.5)
OF_1_0_0 = {
    EXACT: "pytorch onnx web onnx-activations onnx-activations-fp16 onnx-genai-fp32 torchscript pt2 pt2-aoti openvino gguf-f16 gguf-bf16"
    " gguf-adapter mlx executorch litert coreml tensorrt-bundle tensorrt-llm",
    HALF: "pytorch-fp16 onnx-fp16 onnx-genai-fp16 tensorrt-bundle-fp16 tensorrt-rtx tensorrt-rtx-fp16 tensorrt tensorrt-fp16",
    BFLOAT: "pytorch-bf16 onnx-int8-weight",
    W8A8: "pytorch-bnb-int8 pytorch-w8a8",
    EIGHT: "openvino-int8 gguf-q6_k gguf-q8_0 mlx-int8 executorch-int8 litert-int8 coreml-int8",
    COARSE: "onnx-int8 onnx-int8-static onnx-mixed web-int8 onnx-activations-int8 gguf-q5_k_m",
    FOUR: "pytorch-bnb-nf4 pytorch-w4a16 onnx-int4 onnx-int4-fine web-int4 onnx-genai-int4 openvino-int4 gguf-q4_k_m mlx-int4"
    " executorch-8da4w litert-int4 coreml-int4 coreml-palettized",
    (0.999, 1e-05, 0.001): "pytorch-adapter",
}  # fmt: skip
"""(agreement, kl, error) → the variants whose limits these were in 1.0.0."""


def numbers(options: ValidateOptions) -> dict[str, tuple[float, ...]]:
    return {name: (limits.agreement, limits.kl, limits.error) for name, limits in options.thresholds.items()}


def test_normal_is_what_1_0_0_had_for_every_variant_and_figure() -> None:
    before = {name: limits for limits, names in OF_1_0_0.items() for name in names.split()}
    assert len(before) == 58
    for options in (ValidateOptions(), ValidateOptions(strictness="normal"), Settings().validate):
        assert numbers(options) == before


@pytest.mark.parametrize(("strictness", "factor"), [("strict", 0.5), ("loose", 2.0)])
def test_strict_halves_the_distances_and_loose_doubles_them(strictness: str, factor: float) -> None:
    options = ValidateOptions.model_validate({"strictness": strictness})
    assert numbers(options) == {
        name: (pytest.approx(1 - factor * (1 - agreement)), factor * kl, factor * error)
        for name, (agreement, kl, error) in numbers(ValidateOptions()).items()
    }


@pytest.mark.parametrize("strictness", ["strict", "normal", "loose"])
def test_a_limit_of_ones_own_counts_as_it_is_with_any_strictness(strictness: str) -> None:
    options = ValidateOptions.model_validate({"strictness": strictness, "limits": {"onnx-int8": {"kl": 0.123}}})
    plain = ValidateOptions.model_validate({"strictness": strictness}).thresholds
    assert options.thresholds == {**plain, "onnx-int8": plain["onnx-int8"].model_copy(update={"kl": 0.123})}
    assert ValidateOptions.model_validate_json(options.model_dump_json()) == options, "a job file holds it"


def test_the_name_of_1_0_0_sets_the_same_and_limits_count_more() -> None:
    older = ValidateOptions.model_validate({"thresholds": {"onnx": {"kl": 0.5, "error": 2.0}}})
    newer = ValidateOptions.model_validate({"limits": {"onnx": {"kl": 0.5, "error": 2.0}}})
    assert older.thresholds == newer.thresholds
    both = ValidateOptions.model_validate({"thresholds": {"onnx": {"kl": 0.5, "error": 2.0}}, "limits": {"onnx": {"kl": 0.7}}})
    assert (both.thresholds["onnx"].kl, both.thresholds["onnx"].error) == (0.7, 2.0)


def test_a_job_of_1_0_0_keeps_its_key_and_another_strictness_is_another_job() -> None:
    plain = Settings().work

    def digest(**options: object) -> str:
        return plain.model_copy(update={"validation": ValidateOptions.model_validate(options)}).digest

    assert plain.digest == digest() == digest(strictness="normal") == digest(thresholds=catalog().thresholds)
    assert digest(thresholds={"onnx": {"kl": 1.0}}) == digest(limits={"onnx": {"kl": 1.0}}) != plain.digest
    assert len({plain.digest, digest(strictness="strict"), digest(strictness="loose")}) == 3
    assert Work.model_validate_json(plain.model_dump_json()).digest == plain.digest


def test_the_report_holds_the_strictness_and_the_numbers() -> None:
    options = ValidateOptions.model_validate({"strictness": "strict", "limits": {"onnx": {"kl": 0.3}}})
    said = Settings().work.model_copy(update={"validation": options}).model_dump()["validation"]
    assert (said["strictness"], said["limits"], said["thresholds"]["onnx"]["kl"]) == ("strict", {"onnx": {"kl": 0.3}}, 0.3)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('[validate]\nstrictness = "strictly"\n', "validate.strictness: must be 'strict', 'normal' or 'loose'"),
        ("[validate.limits.onnx]\nagrement = 0.9\n", "validate.limits.onnx.agrement: is not a known key; did you mean 'agreement'?"),
        ("[validate.limits.onnx]\nkl = -1\n", "validate.limits.onnx.kl: must be at least 0"),
        ("[validate.limits.onnx-int9]\nkl = 1\n", "validate.limits.onnx-int9: there is no such variant; did you mean 'onnx-int8'?"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(refusal: Callable[[str], str], text: str, wrong: str) -> None:
    assert wrong in refusal(text)
