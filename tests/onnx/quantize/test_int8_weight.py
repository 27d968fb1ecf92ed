"""8-bit weights in blocks: below a third of fp32, and many times as exact as int8 throughout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.onnx.conftest import Exported, Runner, prompts
from tests.onnx.quantize.test_int4 import STEPS, with_dequantized_weights
from tests.onnx.small import TEXT, derived, distance, greedy_tokens, size


@pytest.fixture(scope="session")
def qwen3_int8_weight(qwen3: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model with 8-bit weights. Read only."""
    return derived("int8_weight", qwen3.folder, tmp_path_factory.mktemp("int8-weight"))


# R2.1, R2.3
def test_it_is_below_a_third_of_fp32(qwen3: Exported, qwen3_int8_weight: Exported) -> None:
    ratio = size(qwen3_int8_weight.folder) / size(qwen3.folder)
    assert qwen3_int8_weight.output.figures["size_ratio_to_onnx"] == pytest.approx(ratio, abs=1e-4)
    assert 0.25 < ratio < 0.34
    assert qwen3_int8_weight.output.figures["op_types"] == {"Gather": 1, "MatMul": 15}


# R2.4
def test_it_is_several_times_as_exact_as_int4(qwen3: Exported, qwen3_int8_weight: Exported, tmp_path: Path) -> None:
    error, agreement = distance(qwen3.folder, qwen3_int8_weight.folder)
    coarse, _ = distance(qwen3.folder, derived("int4", qwen3.folder, tmp_path, accuracy_level=1).folder)
    assert 0 < error < 0.3 * coarse
    assert agreement > 0.97
    assert greedy_tokens(qwen3_int8_weight.folder, TEXT) == greedy_tokens(qwen3.folder, TEXT)


@pytest.mark.parametrize(("symmetric", "block_size"), [(True, 32), (False, 128)])
def test_it_computes_what_its_dequantized_weights_say(qwen3: Exported, tmp_path: Path, symmetric: bool, block_size: int) -> None:
    made = derived("int8_weight", qwen3.folder, tmp_path / "made", symmetric=symmetric, block_size=block_size, accuracy_level=1)
    plain = with_dequantized_weights(qwen3.folder, made.folder, tmp_path / "dequantized")
    ids, mask = prompts(2, 15, 3)
    real = mask.astype(bool)
    wanted, got, fp32 = (Runner(folder).logits(ids, mask, STEPS)[real] for folder in (plain, made.folder, qwen3.folder))
    assert np.abs(wanted - got).max() < 1e-4
    assert np.abs(fp32 - got).max() > 1e-3


def test_the_algorithm_of_int4_does_not_act_on_it(qwen3: Exported, tmp_path: Path) -> None:
    made = derived("int8_weight", qwen3.folder, tmp_path, algorithm="k-quant", accuracy_level=1)
    assert (made.output.figures["algorithm"], made.output.figures["symmetric"]) == ("rtn", True)


def test_values_take_a_byte_each(qwen3_int8_weight: Exported) -> None:
    model = ir.load(qwen3_int8_weight.folder / "model.onnx")
    widths = {node.attributes.get_int("bits", 0) for node in model.graph if node.domain == "com.microsoft"}
    assert widths == {8}
