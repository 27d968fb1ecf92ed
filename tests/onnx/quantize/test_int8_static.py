"""Calibrated int8: products alone are quantized, ranges come from texts of which the figures tell, tables are shared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.folder.playback import GraphRun
from handlers.graphs import graphset
from handlers.onnx.quantize.activation_ranges import Activation, watch
from handlers.onnx.quantize.int8_static import StaticRewriter
from tests.onnx.conftest import Exported
from tests.onnx.small import TEXT, derived, distance, greedy_tokens, size, store, tensor


@pytest.fixture(scope="session")
def qwen3_static(qwen3: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model as calibrated int8. Read only."""
    return derived("int8_static", qwen3.folder, tmp_path_factory.mktemp("static"))


# R2.1, R2.3, R10
def test_it_is_a_good_quarter_of_fp32(qwen3: Exported, qwen3_static: Exported) -> None:
    ratio = size(qwen3_static.folder) / size(qwen3.folder)
    assert qwen3_static.output.figures["size_ratio_to_onnx"] == pytest.approx(ratio, abs=1e-4)
    assert 0.25 < ratio < 0.33


# R2.4
def test_it_still_says_what_the_model_has_learnt(qwen3: Exported, qwen3_static: Exported) -> None:
    error, agreement = distance(qwen3.folder, qwen3_static.folder)
    assert 0 < error < 0.1
    assert agreement > 0.95
    assert greedy_tokens(qwen3_static.folder, TEXT) == greedy_tokens(qwen3.folder, TEXT)


def test_products_and_the_table_are_quantized_and_nothing_else(qwen3: Exported, qwen3_static: Exported) -> None:
    assert qwen3_static.output.figures["op_types"] == {"Gather": 1, "MatMul": 15}
    proto = onnx.load(qwen3_static.folder / "model.onnx")
    makers = {output: node for node in proto.graph.node for output in node.output}
    rounded = [makers.get(node.input[0]) for node in proto.graph.node if node.op_type == "DequantizeLinear"]
    readers = {
        node.op_type for node in proto.graph.node for name in node.input if name in makers and makers[name].op_type == "DequantizeLinear"
    }
    assert readers == {"MatMul"}
    assert {maker.op_type for maker in rounded if maker is not None} == {"QuantizeLinear", "Transpose"}
    before, after = graphset.read(qwen3.folder).graphs[0], graphset.read(qwen3_static.folder).graphs[0]
    assert (before.inputs, before.outputs) == (after.inputs, after.outputs)


def test_onnxruntime_multiplies_in_integers(qwen3_static: Exported, tmp_path: Path) -> None:
    """The pairs are fused when the graph is loaded: none of the products is left to be computed in fp32."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    onnxruntime.InferenceSession(qwen3_static.folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    fused = sum(node.op_type in ("MatMulIntegerToFloat", "QLinearMatMul", "MatMulInteger") for node in nodes)
    assert fused == 15


# R2.6
def test_figures_say_what_it_was_calibrated_with(qwen3_static: Exported, qwen3: Exported, tmp_path: Path) -> None:
    figures = qwen3_static.output.figures["calibration"]
    assert isinstance(figures, dict)
    assert figures["texts"] == 32 and figures["tokens"] > 500
    assert 0 < figures["vocabulary_share"] <= 1 and figures["shortest"] <= figures["median"] <= figures["longest"]
    many = derived("int8_static", qwen3.folder, tmp_path / "many", calibration_samples=100)
    assert any("100 calibration texts were requested, but only 34 could be used" in warning for warning in many.output.warnings)
    little = derived("int8_static", qwen3.folder, tmp_path / "little", calibration_samples=2)
    assert little.output.figures["calibration"]["texts"] == 2  # type: ignore[index]
    assert any("too few" in warning for warning in little.output.warnings)


def test_both_ranges_are_measured_and_the_better_one_is_taken(qwen3_static: Exported) -> None:
    figures = qwen3_static.output.figures
    ranges, errors = figures["ranges"], figures["range_errors"]
    assert isinstance(ranges, dict) and isinstance(errors, dict)
    assert set(errors["model"]) == {"min-max", "percentile"}
    assert errors["model"][ranges["model"]] == min(errors["model"].values()) < 0.1


def product(tmp_path: Path, mask: np.ndarray | float = 1.0) -> tuple[Path, np.ndarray]:
    """A graph of one product, and its matrix, multiplied by `mask`."""
    weight = (np.random.default_rng(2).normal(size=(32, 48)) * mask).astype(np.float32)
    proto = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> g (float[n,32] x) => (float[n,48] y) { y = MatMul(x, w) }')
    proto.graph.initializer.append(tensor("w", weight))
    return store(tmp_path / "fp32", {"model": proto}), weight


def test_it_computes_what_onnxruntimes_own_static_quantizer_computes(tmp_path: Path) -> None:
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    # One weight of each four is not 0, so the room that is left for sums in 16 bits changes no scale; theirs leaves none.
    folder, _ = product(
        tmp_path, np.eye(4, dtype=np.float32)[np.random.default_rng(3).integers(4, size=(8, 48))].transpose(0, 2, 1).reshape(32, 48)
    )
    rows = [np.random.default_rng(seed).normal(size=(6, 32)).astype(np.float32) for seed in range(4)]

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(rows)

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
            array = next(self.rows, None)
            return None if array is None else {"x": array}

    quantize_static(
        folder / "model.onnx", tmp_path / "theirs.onnx", Reader(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"], extra_options={"WeightSymmetric": True},
    )  # fmt: skip
    calls = [GraphRun("model", {"x": array}, {}) for array in rows]
    seen = watch(folder / "model.onnx", ["x"], calls, tmp_path / "scratch", threads=1)
    model = ir.load(folder / "model.onnx")
    StaticRewriter(model, {"x": seen["x"].extremes()}).rewrite()
    ir.save(model, tmp_path / "ours.onnx")
    x = rows[0]
    ours, theirs = (
        onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("ours.onnx", "theirs.onnx")
    )
    # Theirs rounds the result too, to one of 255 steps over its range.
    assert np.abs(ours - theirs).max() < 1.5 * np.ptp(theirs) / 255


def test_values_are_watched_in_a_graph_whose_weights_lie_beside_it(tmp_path: Path) -> None:
    folder, weight = product(tmp_path)
    path = folder / "model.onnx"
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="model.onnx.data", size_threshold=0)
    seen = watch(path, ["x", "y"], [GraphRun("model", {"x": np.ones((1, 32), np.float32)}, {})], tmp_path / "scratch", threads=1)
    assert seen["x"].extremes() == (0.0, 1.0)
    assert seen["y"].extremes()[1] == pytest.approx(weight.sum(0).max(), abs=1e-4)


def test_values_beyond_the_range_are_cut_to_it(tmp_path: Path) -> None:
    import onnxruntime

    folder, weight = product(tmp_path)
    model = ir.load(folder / "model.onnx")
    StaticRewriter(model, {"x": (-1.0, 1.0)}).rewrite()
    ir.save(model, tmp_path / "cut.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "cut.onnx", providers=["CPUExecutionProvider"])
    inside, outside = (session.run(None, {"x": np.full((1, 32), value, np.float32)})[0] for value in (1.0, 50.0))
    assert np.abs(inside - outside).max() < 0.02 * np.abs(inside).max()
    assert np.abs(inside - weight.sum(0)).max() < 0.3


def test_a_percentile_leaves_outliers_out_and_extremes_keep_them() -> None:
    activation = Activation()
    values = np.random.default_rng(0).uniform(-1, 1, 40_000).astype(np.float32)
    values[17] = 500
    for part in np.split(values, 4):
        activation.see(part)
    activation.see(np.array([np.inf, -np.inf, -3.4e38, np.nan], np.float32))
    assert activation.extremes()[1] == 500 and activation.extremes()[0] > -1.01
    low, high = activation.percentile()
    assert -1.01 < low < -0.99 and 0.99 < high < 1.01


def test_without_a_tokenizer_there_is_nothing_to_calibrate_with(tmp_path: Path) -> None:
    folder, _ = product(tmp_path)
    with pytest.raises(Permanent, match=r"there is no tokenizer\.json"):
        derived("int8_static", folder, tmp_path / "made")
