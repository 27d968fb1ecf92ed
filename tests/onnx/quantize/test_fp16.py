"""Half precision: half the size, nearly the same answers, and in fp32 what fp16 can't hold."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.graphs import graphset
from handlers.graphs.rewriting import find_lookups
from handlers.onnx.quantize import fp16
from handlers.onnx.quantize.rewriters.fp16_rewriter import MASK, Converted, HalfRewriter
from tests.onnx.conftest import Exported
from tests.onnx.small import TEXT, derived, distance, greedy_tokens, size, tensor


@pytest.fixture(scope="session")
def qwen3_fp16(qwen3: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model in half precision. Read only."""
    return derived("fp16", qwen3.folder, tmp_path_factory.mktemp("fp16"))


# R2.1, R2.3
def test_it_is_half_of_fp32(qwen3: Exported, qwen3_fp16: Exported) -> None:
    ratio = size(qwen3_fp16.folder) / size(qwen3.folder)
    assert qwen3_fp16.output.figures["size_ratio_to_onnx"] == pytest.approx(ratio, abs=1e-4)
    assert ratio < 0.55
    assert qwen3_fp16.output.warnings == [] == qwen3_fp16.output.fallbacks


# R2.4
def test_it_says_nearly_what_fp32_says(qwen3: Exported, qwen3_fp16: Exported) -> None:
    error, agreement = distance(qwen3.folder, qwen3_fp16.folder)
    assert 0 < error < 0.005
    assert agreement > 0.98
    assert greedy_tokens(qwen3_fp16.folder, TEXT) == greedy_tokens(qwen3.folder, TEXT)
    stated = qwen3_fp16.output.figures["error_to_onnx"]
    assert isinstance(stated, float) and 0 < stated < 0.005


def test_cache_is_fp16_and_logits_are_fp32_under_the_same_names(qwen3: Exported, qwen3_fp16: Exported) -> None:
    before, after = (graphset.read(folder).graphs[0] for folder in (qwen3.folder, qwen3_fp16.folder))
    for old, new in ((before.inputs, after.inputs), (before.outputs, after.outputs)):
        assert [(port.name, port.shape) for port in old] == [(port.name, port.shape) for port in new]
    kinds = {port.name.split(".")[0]: port.dtype for port in (*after.inputs, *after.outputs)}
    assert kinds == {
        "input_ids": "int64", "attention_mask": "int64", "position_ids": "int64", "past_key_values": "float16", "present": "float16",
        "logits": "float32",
    }  # fmt: skip


def test_norms_and_angles_stay_in_fp32_and_every_name_is_used_once(qwen3_fp16: Exported) -> None:
    model = onnx.load(qwen3_fp16.folder / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    kinds = {
        value.name: value.type.tensor_type.elem_type
        for value in onnx.shape_inference.infer_shapes(model, strict_mode=True).graph.value_info
    }
    norms = [node for node in model.graph.node if node.op_type in ("Pow", "ReduceMean", "Sqrt", "Sin", "Cos")]
    assert len(norms) > 9
    assert {kinds[node.output[0]] for node in norms} == {onnx.TensorProto.FLOAT}
    assert {kinds[node.output[0]] for node in model.graph.node if node.op_type == "Softmax"} == {onnx.TensorProto.FLOAT16}
    names = [node.name for node in model.graph.node]
    assert len(names) == len(set(names))
    assert all(tensor.data_type != onnx.TensorProto.FLOAT for tensor in model.graph.initializer if np.prod(tensor.dims) > 1000)


def converted(
    text: str, weights: dict[str, np.ndarray], tmp_path: Path, overflowing: frozenset[str] = frozenset()
) -> tuple[Converted, onnxruntime.InferenceSession]:
    """A hand-made graph in half precision: what was done, and a session of it."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    proto.graph.initializer.extend([tensor(name, array) for name, array in weights.items()])
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    done = HalfRewriter(model, overflowing=overflowing).rewrite()
    ir.save(model, tmp_path / "half.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "half.onnx"), full_check=True)
    return done, onnxruntime.InferenceSession(tmp_path / "half.onnx", providers=["CPUExecutionProvider"])


def test_a_weight_beyond_the_range_stays_fp32_and_is_named(tmp_path: Path) -> None:
    weight = np.eye(32, dtype=np.float32)
    weight[3, 3] = 1e5
    done, session = converted(
        "g (float[n,32] x) => (float[n,32] y) { h = MatMul(x, w) y = Mul(h, c) }", {"w": weight, "c": np.float32([1e-3] * 32)}, tmp_path
    )
    assert done.too_large == ["w"]
    (y,) = session.run(None, {"x": np.ones((1, 32), np.float16)})
    assert y.dtype == np.float16 and np.isfinite(y).all()


def test_values_that_were_seen_to_overflow_are_computed_in_fp32(tmp_path: Path) -> None:
    text = "g (float[n,32] x) => (float[n,32] y) { h = MatMul(x, w) a = Add(h, h) y = Mul(a, c) }"
    weights = {"w": np.full((32, 32), 2000, np.float32), "c": np.full(32, 1e-3, np.float32)}
    done, session = converted(text, weights, tmp_path, frozenset({"h", "a"}))
    assert done.kept_nodes == {"MatMul": 1, "Add": 1, "Mul": 1}
    (y,) = session.run(None, {"x": np.ones((1, 32), np.float16)})
    assert np.abs(y - 128).max() < 0.2


def test_masks_keep_their_meaning_without_becoming_infinite(tmp_path: Path) -> None:
    _, session = converted(
        "g (bool[n] m, float[n] s) => (float[n] y) { b = Where(m, zero, low) y = Add(s, b) }",
        {"zero": np.float32(0).reshape(()), "low": np.float32(np.finfo(np.float32).min).reshape(())},
        tmp_path,
    )
    (y,) = session.run(None, {"m": np.array([True, False]), "s": np.array([-30.0, -30.0], np.float16)})
    assert y[0] == -30 and np.isfinite(y[1]) and y[1] < -0.99 * MASK


def test_one_value_that_two_kept_nodes_read_is_cast_once(tmp_path: Path) -> None:
    done, session = converted("g (float[n] x) => (float[n] y, float[n] z) { y = Sqrt(x) z = Reciprocal(x) }", {}, tmp_path)
    assert done.casts == 3
    y, z = session.run(None, {"x": np.array([4.0], np.float16)})
    assert (y[0], z[0], y.dtype) == (2, 0.25, np.float16)


def test_branches_of_a_graph_are_converted_too(tmp_path: Path) -> None:
    weight = np.random.default_rng(5).normal(size=(64, 32)).astype(np.float32)
    _, session = converted(
        "g (bool c, float[n,64] x) => (float[n,32] y) { y = If(c) <then_branch = a () => (float[n,32] p) { p = MatMul(x, w) }, "
        "else_branch = b () => (float[n,32] q) { h = Abs(x) r = Sqrt(h) q = MatMul(r, w) }> }",
        {"w": weight}, tmp_path,
    )  # fmt: skip
    x = np.random.default_rng(6).normal(size=(3, 64)).astype(np.float16)
    for branch, wanted in ((True, x @ weight), (False, np.sqrt(np.abs(x)) @ weight)):
        (y,) = session.run(None, {"c": np.array(branch), "x": x})
        assert y.dtype == np.float16 and np.abs(y - wanted).max() < 0.05


def scaled(source: Path, target: Path, factor: float) -> Path:
    """The folder with embeddings times `factor`, so that the residual stream leaves fp16's range; norms take it out again."""
    shutil.copytree(source, target)
    model = ir.load(target / "model.onnx")
    node = find_lookups(model)[0].node
    rows = node.outputs[0]
    times = ir.Value(name="times", const_value=ir.tensor(np.float32(factor), name="times"), type=ir.TensorType(ir.DataType.FLOAT))
    model.graph.register_initializer(times)
    grown = ir.node("Mul", [rows, times], name="grown")
    grown.outputs[0].name, grown.outputs[0].type, grown.outputs[0].shape = "grown", rows.type, rows.shape
    ir.convenience.replace_all_uses_with(rows, grown.outputs[0])
    grown.replace_input_with(0, rows)
    model.graph.insert_after(node, grown)
    ir.save(model, target / "part")
    (target / "part").replace(target / "model.onnx")
    return target


def test_a_model_whose_activations_overflow_is_measured_and_kept_sound(qwen3: Exported, tmp_path: Path) -> None:
    source = scaled(qwen3.folder, tmp_path / "source", 1e6)
    made = derived("fp16", source, tmp_path / "made")
    (warning,) = made.output.warnings
    assert "come close to the limit of fp16's range" in warning
    error, _ = distance(source, made.folder)
    assert error < 0.02
    model = onnx.shape_inference.infer_shapes(onnx.load(made.folder / "model.onnx"))
    kinds = {value.name: value.type.tensor_type.elem_type for value in model.graph.value_info}
    assert kinds["grown"] == onnx.TensorProto.FLOAT


def test_a_graph_that_is_far_off_is_refused_with_another_way(qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp16, "BOUND", 1e-9)
    with pytest.raises(Permanent, match="standard deviations off") as caught:
        derived("fp16", qwen3.folder, tmp_path)
    assert caught.value.fault.code == "fp16-overflow" and "onnx-int8-weight" in caught.value.fault.remedy
