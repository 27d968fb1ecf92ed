"""The int8 graph is a quarter of the fp32 one, says nearly the same, and stores a tied embedding once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.graphs import graph_file
from handlers.graphs.integer_products import HIGHEST, examine
from handlers.onnx.quantize.rewriters.int8_rewriter import IntegerRewriter, quantize_matrix
from tests import models
from tests.onnx.conftest import Exported, Runner, describe, make_context, quantize, silent
from tests.onnx.small import bert, derived, distance, store


def log_probabilities(exported: Exported, source: Path) -> np.ndarray:
    """Of every token of the texts that the model was trained on, prefill of 8 and then one by one."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    batch = tokenizer(models.TEXTS, padding="max_length", truncation=True, max_length=14, padding_side="left", return_tensors="np")
    logits = Runner(exported.folder).logits(batch["input_ids"], batch["attention_mask"], (8, *[1] * 6))[
        batch["attention_mask"].astype(bool)
    ]
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# R2.1, R2.4
def test_int8_says_nearly_what_fp32_says(trained: Path, qwen3: Exported, qwen3_int8: Exported) -> None:
    wanted, got = log_probabilities(qwen3, trained), log_probabilities(qwen3_int8, trained)
    divergence = (np.exp(wanted) * (wanted - got)).sum(-1).mean()
    agreement = (wanted.argmax(-1) == got.argmax(-1)).mean()
    assert 0 < divergence < 0.01
    assert agreement > 0.95


# R2.1, R10
def test_int8_is_a_good_quarter_of_fp32(qwen3: Exported, qwen3_int8: Exported) -> None:
    ratio = (qwen3_int8.folder / "model.onnx").stat().st_size / (qwen3.folder / "model.onnx").stat().st_size
    assert qwen3_int8.output.figures["size_ratio_to_onnx"] == pytest.approx(ratio, abs=1e-4)
    assert 0.25 < ratio < 0.33


def test_every_weight_matrix_is_int8_and_the_tied_table_is_stored_once(qwen3_int8: Exported) -> None:
    figures = qwen3_int8.output.figures
    assert figures["op_types"] == {"Gather": 1, "MatMul": 15}
    assert (figures["quantized_nodes"], figures["kept_fp32_nodes"], figures["shared_tables"]) == (16, 0, 1)
    tensors = onnx.load(qwen3_int8.folder / "model.onnx").graph.initializer
    tables = [list(tensor.dims) for tensor in tensors if 320 in tensor.dims and 128 in tensor.dims]
    assert tables == [[320, 128]]
    assert all(tensor.data_type == onnx.TensorProto.INT8 for tensor in tensors if len(tensor.dims) == 2 and min(tensor.dims) >= 16)


def test_the_tied_table_of_a_language_model_leaves_room_too(qwen3_int8: Exported) -> None:
    found = examine([ir.load(qwen3_int8.folder / "model.onnx")])
    assert found.fault is None and len(found.products) == 15
    assert {(one.activations, one.weights) for one in found.products} == {("uint8", "int8")}
    assert HIGHEST * 0.9 < (max(one.largest or 0 for one in found.products)) <= HIGHEST


def test_inputs_outputs_and_the_files_beside_stay_the_same(qwen3: Exported, qwen3_int8: Exported) -> None:
    before, after = Runner(qwen3.folder).session, Runner(qwen3_int8.folder).session
    for old, new in ((before.get_inputs(), after.get_inputs()), (before.get_outputs(), after.get_outputs())):
        assert [(value.name, value.shape, value.type) for value in old] == [(value.name, value.shape, value.type) for value in new]
    own = ("model.onnx", "graphs.json")
    files = {path.name: path.read_bytes() for path in qwen3.folder.iterdir() if path.name not in own}
    assert {path.name: path.read_bytes() for path in qwen3_int8.folder.iterdir() if path.name not in own} == files


def test_it_computes_what_onnxruntimes_own_quantizer_computes(qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the table left in fp32 and the output layer turned first, which that tool can't do by itself; and with the weights' whole range,
    which it takes whatever processor the graph is for."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from handlers.graphs import rewriting
    from handlers.onnx.quantize.rewriters import int8_rewriter

    proto = onnx.load(qwen3.folder / "model.onnx")
    (turn,) = (node for node in proto.graph.node if node.op_type == "Transpose" and node.input[0].endswith("lm_head.weight"))
    table = next(tensor for tensor in proto.graph.initializer if tensor.name == turn.input[0])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(table).T.copy(), turn.output[0]))
    proto.graph.node.remove(turn)
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    quantize_dynamic(
        proto, tmp_path / "theirs" / "model.onnx", weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["MatMul"]
    )
    monkeypatch.setattr(rewriting, "MIN_TABLE_SHARE", 2.0)
    monkeypatch.setattr(int8_rewriter, "_largest_pairs", lambda block: np.zeros(block.shape[1], np.float32))
    model = ir.load(qwen3.folder / "model.onnx")
    IntegerRewriter(model).rewrite()
    ir.save(model, tmp_path / "ours" / "model.onnx")
    ids, mask = np.arange(2, 32).reshape(2, 15), np.ones((2, 15), np.int64)
    ours, theirs = (Runner(tmp_path / name).logits(ids, mask, (9, 1, 5)) for name in ("ours", "theirs"))
    assert np.abs(ours - theirs).max() < 1e-4


@pytest.mark.parametrize("channel", [0, 1])
def test_a_matrix_comes_back_within_half_a_step_of_its_channel(channel: int) -> None:
    weight = np.random.default_rng(1).normal(size=(40, 24)).astype(np.float32) * np.logspace(-3, 2, 24, dtype=np.float32)
    weight[7] = 0
    weight.flags.writeable = False  # as it is in a mapped file
    values, scales = quantize_matrix(weight, channel)
    step = scales[:, None] if channel == 0 else scales[None, :]
    assert values.dtype == np.int8 and scales.dtype == np.float32 and scales.shape == (weight.shape[channel],)
    assert (np.abs(values * step - weight) <= step * 0.5001).all()
    whole, _ = quantize_matrix(weight, channel, multiplied=False)
    assert np.abs(whole).max() == 127 >= np.abs(values).max() > 90


def test_linear_layers_with_bias_that_are_gemm_nodes_become_integer_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    weight, bias = rng.normal(size=(48, 32)).astype(np.float32), rng.normal(size=48).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n,32] x) => (float[n,48] y) { y = Gemm<transB=1>(x, w, b) }'
    )
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(weight, "w"), onnx.numpy_helper.from_array(bias, "b")])
    (tmp_path / "fp32").mkdir()
    onnx.save(proto, tmp_path / "fp32" / "model.onnx")
    describe(tmp_path / "fp32")
    exported = quantize(tmp_path / "fp32", tmp_path)
    assert exported.output.figures["op_types"] == {"Gemm": 1}
    x = rng.normal(size=(5, 32)).astype(np.float32)
    (got,) = Runner(exported.folder).session.run(None, {"x": x})
    assert 0 < np.abs(got - (x @ weight.T + bias)).max() < 0.25


def test_products_that_follow_each_other_are_both_turned(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(32, 48)).astype(np.float32), rng.normal(size=(48, 16)).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n,32] x) => (float[n,16] y) { h = MatMul(x, a) y = MatMul(h, b) }'
    )
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(first, "a"), onnx.numpy_helper.from_array(second, "b")])
    exported = quantize(store(tmp_path / "fp32", {"model": proto}), tmp_path)
    x = rng.normal(size=(5, 32)).astype(np.float32)
    (got,) = Runner(exported.folder).session.run(None, {"x": x})
    wanted = x @ first @ second
    assert 0 < np.abs(got - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX folder of a BERT. Read only."""
    return bert(tmp_path_factory.mktemp("bert") / "source")


@pytest.mark.parametrize("stage", ["int8", "int8_static", "int8_weight", "int4", "fp16"])
def test_an_encoder_is_made_smaller_too(encoder: Path, tmp_path: Path, stage: str) -> None:
    source = encoder
    made = derived(stage, source, tmp_path / "made")
    figures, limit = made.output.figures, {"int4": 0.26, "fp16": 0.6}.get(stage, 0.4)
    ratio = figures["size_ratio_to_onnx"]
    assert isinstance(ratio, float) and ratio < limit
    error, _ = distance(source, made.folder)
    assert 0 < error < 0.2


def test_a_graph_above_the_limit_of_one_file_keeps_its_weights_beside(
    qwen3: Exported, qwen3_int8: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_file, "SINGLE_FILE_LIMIT", 100_000)
    exported = quantize(qwen3.folder, tmp_path)
    assert exported.output.figures["external_data"] is True and (exported.folder / "model.onnx.data").stat().st_size > 100_000
    ids, mask = np.arange(2, 32).reshape(2, 15), np.ones((2, 15), np.int64)
    both = [Runner(one.folder).logits(ids, mask, (9, 1, 5)) for one in (exported, qwen3_int8)]
    assert np.array_equal(*both)


def test_a_graph_without_weights_to_turn_is_refused(tmp_path: Path) -> None:
    from handlers.onnx.quantize import int8

    (tmp_path / "fp32").mkdir()
    proto = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Add(x, x) }')
    onnx.save(proto, tmp_path / "fp32" / "model.onnx")
    describe(tmp_path / "fp32")
    with pytest.raises(Permanent, match="no matrix product with a constant weight was found"):
        int8.run(make_context(tmp_path, "onnx-int8", {"onnx": tmp_path / "fp32"}, tmp_path), silent())


def test_the_int8_stage_never_imports_torch() -> None:
    code = "import sys, handlers.onnx.quantize.int8; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
