"""A language model that is not small is never held whole: torch is asked layer by layer, and the graph is filled block by block."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.formats.stages import LAYER_BY_LAYER
from handlers.families.base import UNREAD, Tracing
from handlers.families.causal import Causal
from handlers.families.choice import choose
from handlers.graphs import graph_file, sessions
from handlers.layerwise import passes, skeleton
from handlers.onnx.export import stage, templated
from handlers.onnx.templates import filling, layers
from handlers.onnx.templates.sources import Source
from handlers.onnx.templates.weights import Weights
from tests.onnx.conftest import silent
from tests.onnx.layers.deep_models import MODELS, job, make, run
from tests.sampling import some

REFUSED = {"GPT-NeoX", "Mixtral", "Qwen3-MoE", "Qwen3-MoE, first layers dense"}
"""Decoders whose weights are stored otherwise than they are run."""
DECODERS = sorted(
    name for name, (_, kind, _) in MODELS.items() if kind.endswith(("ForCausalLM", "LMHeadModel")) and name not in REFUSED
)  # fmt: skip


@pytest.mark.parametrize("name", some(DECODERS, 4))
def test_torch_says_the_same_layer_by_layer(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", name)
    family = choose(folder)
    assert isinstance(family, Causal)
    model = family.load(folder, Tracing())
    wanted, layers_wanted = family.refer(model, folder), layers.of_model(model)
    made = skeleton.build(folder, family.task.name, attention="eager")
    assert layers.of_model(made.model) is not None and layers_wanted is not None
    assert layers.of_model(made.model) == layers_wanted
    assert made.unread == getattr(model, UNREAD)
    found = passes.run(made, lambda one: family.refer(one, folder))
    assert (found.signature, found.untested) == (wanted.signature, wanted.untested)
    for mine, theirs in zip(found.cases, wanted.cases, strict=True):
        assert np.abs(theirs.logits).max() > 0.1
        np.testing.assert_allclose(mine.logits, theirs.logits, atol=2e-5 * np.abs(theirs.logits).max())


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [LAYER_BY_LAYER, "default"])
def test_the_export_is_the_same_to_the_byte(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "model", "Llama", num_hidden_layers=6)
    whole = run(job(tmp_path / "whole", folder))
    monkeypatch.setattr(filling, "BLOCK", 1000)
    monkeypatch.setattr(templated, "SMALL", 0)
    loaded: list[Path] = []
    load = Causal.load
    monkeypatch.setattr(Causal, "load", lambda self, path, tracing: loaded.append(path) or load(self, path, tracing))
    context = job(tmp_path / "layers", folder, tmp_path / "whole" / "cache").model_copy(update={"strategy": strategy})
    exported = run(context)
    assert exported.output.figures["template"]["used"] == "kept"
    for path in whole.folder.glob("*.onnx*"):
        assert (exported.folder / path.name).read_bytes() == path.read_bytes(), path.name
    assert folder not in loaded, "the model was loaded whole"


def test_what_can_not_be_run_so_is_refused_where_it_must_be_and_loaded_where_it_may_be(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "Mixtral", num_hidden_layers=2)
    context = job(tmp_path / "job", folder).model_copy(update={"strategy": LAYER_BY_LAYER})
    with pytest.raises(Permanent) as caught:
        stage.run(context, silent())
    assert caught.value.fault.code == "memory-never" and "mixtures of experts" in caught.value.fault.cause


def test_a_model_without_a_template_is_refused_where_it_would_have_to_be_held_whole(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "Llama", num_hidden_layers=2)
    context = job(tmp_path / "job", folder, templates=False).model_copy(update={"strategy": LAYER_BY_LAYER})
    with pytest.raises(Permanent) as caught:
        stage.run(context, silent())
    assert caught.value.fault.code == "memory-never" and "onnx.templates is off" in caught.value.fault.cause


@pytest.mark.slow
def test_where_one_exporter_gives_no_template_the_next_one_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "model", "Llama", num_hidden_layers=6)
    made, asked = templated.make, list[str]()

    def fail_first(task: Any, *more: Any) -> Any:
        asked.append(task.strategy.name)
        if len(asked) == 1:
            raise ValueError("this exporter does not know the operator")
        return made(task, *more)

    monkeypatch.setattr(templated, "make", fail_first)
    exported = run(job(tmp_path / "job", folder).model_copy(update={"strategy": LAYER_BY_LAYER}))
    assert exported.output.figures["template"]["used"] == "made" and len(asked) == 2
    assert exported.output.strategy == asked[1] and "this exporter does not know" in exported.output.fallbacks[0].reason


SOURCES = {
    "as it is": Source((40, 30), "a"),
    "in another shape": Source((4, 10, 30), "a"),
    "turned": Source((30, 40), "a", turned=True),
    "raised": Source((40, 30), "a", added=1.0),
    "turned and raised": Source((30, 40), "a", turned=True, added=1.0),
    "a vector": Source((90,), "c"),
    "above each other": Source((60, 30), parts=(Source((40, 30), "a"), Source((20, 30), "b")), axis=0),
    "side by side": Source((30, 60), parts=(Source((30, 40), "a", turned=True), Source((30, 20), "b", turned=True)), axis=1),
    "stacked": Source((2, 30, 40), parts=(Source((30, 40), "a", turned=True), Source((30, 40), "a", turned=True))),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("elements", [1, 70, 10**9])
def test_blocks_are_the_whole(name: str, elements: int) -> None:
    draw = np.random.default_rng(1)
    tensors = {"a": draw.normal(size=(40, 30)).astype(np.float16), "b": draw.normal(size=(20, 30)), "c": draw.normal(size=90)}
    source = SOURCES[name]
    blocks = list(source.blocks(tensors.__getitem__, elements))
    assert all(block.dtype == np.float32 and block.flags.c_contiguous for block in blocks)
    assert np.array_equal(np.concatenate([block.reshape(-1) for block in blocks]), source.read(tensors.__getitem__).reshape(-1))
    assert elements == 10**9 or source.axis == 1 or len(blocks) > 1


def test_a_tensor_of_another_size_is_never_written(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", "Llama", num_hidden_layers=1)
    weights = Weights(folder)
    name = next(name for name, info in weights.infos.items() if len(info.shape) == 2)
    value = ir.Value(name="w", shape=ir.Shape((3, 3)), type=ir.TensorType(ir.DataType.FLOAT), const_value=ir.tensor(np.zeros((3, 3), "f")))
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 18}), ir_version=10)
    filling.fill(model, {"w": Source((3, 3), name)}, weights)
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    with pytest.raises(ValueError, match=re.escape(name)):
        tensor.tofile(io.BytesIO())  # type: ignore[attr-defined]


def held(path: Path) -> int:
    """Bytes of a file that count for this process."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


@pytest.mark.parametrize("releasing", [True, False])
def test_a_session_lets_go_of_the_pages_that_it_has_read(releasing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_LARGE", 1 << 20)
    weight = np.random.default_rng(1).normal(size=(512, 2048)).astype(np.float32)
    values = [
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in (("x", (2, 512)), ("w", weight.shape))
    ]
    values[1].const_value = ir.tensor(weight, name="w")
    node = ir.node("MatMul", values)
    node.outputs[0].name = "y"
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape((2, 2048))
    graph = ir.Graph(values[:1], node.outputs, nodes=[node], initializers=values[1:], opset_imports={"": 18}, name="g")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx", external_data="m.onnx.data")
    session = sessions.open_session(tmp_path / "m.onnx", 1, sessions.MappedWeights(releasing=releasing))
    given = np.ones((2, 512), np.float32)
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, {"x": given})[0], given @ weight, rtol=1e-3, atol=1e-3)
    left = held(tmp_path / "m.onnx.data")
    assert left < weight.nbytes // 4 if releasing else left >= weight.nbytes


def test_a_transposed_view_is_written_as_the_matrix_that_it_is(tmp_path: Path) -> None:
    matrix = torch.randn(300, 70).numpy()
    value = ir.Value(name="w", shape=ir.Shape((70, 300)), type=ir.TensorType(ir.DataType.FLOAT), const_value=ir.tensor(matrix.T, name="w"))
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=[value], opset_imports={"": 18}, name="g"), ir_version=10)
    written = graph_file.write({"m.onnx": model}, tmp_path, tmp_path)["m.onnx"]
    assert np.array_equal(ir.load(written).graph.initializers["w"].const_value.numpy(), matrix.T)
    assert isinstance(model.graph.initializers["w"].const_value, ir.LazyTensor), "numpy would write the view element by element"
