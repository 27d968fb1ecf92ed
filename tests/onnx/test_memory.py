"""What an export holds in memory: the weights once, and not at all where nobody needs them any more."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from handlers.graphs import graphset
from handlers.graphs.sessions import MappedWeights, open_session
from handlers.graphs.weights import spool
from handlers.onnx.optimize.judging.random_inputs import InputShape, Maker
from handlers.onnx.quantize import int8, weight_only
from tests.onnx.conftest import SMALL, Exported, make_context, make_model, silent

STAGES = {"onnx-int8": int8.run, "onnx-int4": weight_only.int4, "onnx-int8-weight": weight_only.int8}
WIDTH = 80
"""A hidden size that no other test's model has."""


# R6.2
@pytest.mark.slow
def test_no_weight_outlives_the_export(tmp_path: Path, export: Callable[..., Exported]) -> None:
    export(make_model(tmp_path / "model", "Llama", **{**SMALL, "hidden_size": WIDTH}), optimize="none")
    gc.collect()
    real = (torch.Tensor, torch.nn.Parameter)  # those that tracing leaves behind hold no bytes
    kept = [item for item in gc.get_objects() if type(item) in real and item.ndim == 2 and WIDTH in item.shape]
    assert [tuple(item.shape) for item in kept if item.untyped_storage().nbytes()] == []


@pytest.fixture
def apart(qwen3: Exported, tmp_path: Path) -> Path:
    """The folder's graph with its weights in a file."""
    model = ir.load(qwen3.folder / "model.onnx")
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data")
    return tmp_path / "model.onnx"


@pytest.fixture
def feeds(qwen3: Exported) -> dict[str, np.ndarray]:
    """Inputs of two rows of five tokens."""
    return Maker(graphset.read(qwen3.folder).graphs[0], {"vocab_size": 320}).make(InputShape(2, 5), 3).feeds


def times_mapped(path: Path) -> int:
    """How many of this process's mappings show the file; onnxruntime, and each tensor by itself, would make another."""
    return sum(line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def test_sessions_that_share_weights_map_their_file_once_and_answer_alike(apart: Path, feeds: dict[str, np.ndarray]) -> None:
    weights = MappedWeights()
    sessions = [open_session(apart, 1, weights) for _ in range(3)]
    first, *others = [session.run(None, feeds) for session in sessions]
    assert times_mapped(apart.with_name("model.onnx.data")) == 1
    wanted = open_session(apart, 1).run(None, feeds)
    assert np.abs(first[0] - wanted[0]).max() <= 1e-5
    for other in others:
        assert all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_a_table_that_is_the_heads_weight_too_is_not_turned_around_beside_itself(tmp_path: Path) -> None:
    """onnxruntime would fold the constant: a second copy of the largest weight, in each session that is only to be compared."""
    table = np.random.default_rng(0).standard_normal((200_000, 64)).astype(np.float32)  # 51 MB
    weight = ir.Value(
        name="table", const_value=ir.tensor(table, name="table"), shape=ir.Shape(table.shape), type=ir.TensorType(ir.DataType.FLOAT)
    )
    ids, rows = (ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind)) for name, shape, kind in (
        ("ids", ["n"], ir.DataType.INT64), ("rows", ["n", 200_000], ir.DataType.FLOAT),
    ))  # fmt: skip
    looked, turned = ir.node("Gather", [weight, ids]), ir.node("Transpose", [weight], {"perm": [1, 0]})
    nodes = [looked, turned, ir.Node("", "MatMul", [looked.outputs[0], turned.outputs[0]], outputs=[rows])]
    graph = ir.Graph([ids], [rows], nodes=nodes, initializers=[weight], opset_imports={"": 18}, name="tied")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx", external_data="model.onnx.data")
    before = anonymous()
    session = open_session(tmp_path / "model.onnx", 1, MappedWeights())
    assert anonymous() - before < table.nbytes // 2
    wanted = open_session(tmp_path / "model.onnx", 1).run(None, {"ids": np.array([3, 7])})[0]
    assert np.abs(session.run(None, {"ids": np.array([3, 7])})[0] - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("weights", [None, MappedWeights()])
def test_a_graph_that_onnxruntime_does_not_take_is_a_runtime_error(weights: MappedWeights | None, tmp_path: Path) -> None:
    """Its own errors have no class in common."""
    value = ir.Value(name="x", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("NoSuchOperator", [value])
    node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
    graph = ir.Graph([value], node.outputs, nodes=[node], opset_imports={"": 18}, name="unknown")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "model.onnx")
    with pytest.raises(RuntimeError, match="NoSuchOperator"):
        open_session(tmp_path / "model.onnx", 1, weights)


def anonymous() -> int:
    """Bytes of this process's memory that are no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def test_a_session_keeps_its_weights_itself_and_lets_them_go_with_it(apart: Path, feeds: dict[str, np.ndarray]) -> None:
    session = open_session(apart, 1, MappedWeights())
    gc.collect()
    wanted = open_session(apart, 1).run(None, feeds)[0]
    assert np.abs(session.run(None, feeds)[0] - wanted).max() <= 1e-5
    del session
    assert times_mapped(apart.with_name("model.onnx.data")) == 0


@pytest.mark.parametrize("name", ["onnx-int8", "onnx-int4", "onnx-int8-weight"])
def test_weights_that_wait_on_disk_are_those_that_wait_in_memory(
    name: str, qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model's quantized weights never lie in memory together; the graph is the same to the bit."""
    made = {}
    for where, first in (("memory", 1 << 60), ("disk", 0)):
        monkeypatch.setattr(spool, "FROM_BYTES", first)
        monkeypatch.setattr(spool, "LARGE", 100)
        context = make_context(tmp_path / where, name, {"onnx": qwen3.folder}, qwen3.folder, accuracy_level=1)
        STAGES[name](context, silent())
        assert (Path(context.temporary) / "weights").is_file() == (where == "disk")
        made[where] = {path.name: path.read_bytes() for path in Path(context.staging).iterdir()}
    assert made["memory"] == made["disk"]


def test_of_the_spools_arrays_one_is_in_memory_at_a_time(tmp_path: Path) -> None:
    kept, generator = spool.Spool(tmp_path / "weights"), np.random.default_rng(0)
    arrays = [generator.integers(-128, 127, (1024, 1024 + number), np.int8) for number in range(8)]
    tensors = [kept.tensor(array, f"{number}") for number, array in enumerate(arrays)]
    assert all(
        np.array_equal(tensor.numpy(), array) and tensor.nbytes == array.nbytes for tensor, array in zip(tensors, arrays, strict=True)
    )
    arrays.clear()
    gc.collect()
    tracemalloc.start()
    for tensor in tensors:
        tensor.numpy()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 << 20
