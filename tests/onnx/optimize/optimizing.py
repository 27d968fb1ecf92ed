"""What the tests of the graph optimization share: how a folder is optimized and compared, and steps that go wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from handlers.graphs import graphset
from handlers.graphs.graphset import GraphSet
from handlers.onnx.optimize.judging import equivalence, timing
from handlers.onnx.optimize.judging.random_inputs import InputShape, Maker, RandomInputs
from handlers.onnx.optimize.run import Optimized, OptimizeOptions, optimize
from handlers.onnx.optimize.step import StepInput, StepReport
from tests.onnx.conftest import Exported


def copied(source: Exported, folder: Path) -> Path:
    shutil.copytree(source.folder, folder / "folder")
    return folder / "folder"


EQUAL = timing.Race(1e-3, 1e-3, "equal")


def run(
    folder: Path, level: Any = "extended", verify: Callable[[Path], float] = lambda folder: 0.0, race: timing.Race | None = EQUAL,
    **options: Any,
) -> Optimized:  # fmt: skip
    """Optimize a folder; each race ends with `race`, or is measured if that is None."""
    config = json.loads((folder / "config.json").read_text())
    pace = timing.race if race is None else lambda *_, **__: race
    with mock.patch("handlers.onnx.optimize.judging.acceptance.race", pace):
        return optimize(folder, graphset.read(folder), level, verify, config, OptimizeOptions(**{"threads": 2, **options}))


def of(optimized: Optimized, step: str, graph: str = "model") -> StepReport:
    return next(report for report in optimized.reports if (report.name, report.graph) == (step, graph))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".onnx", ".data", ".json")}


def answers(folder: Path, graph: graphset.Graph, case: RandomInputs) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(folder / graph.file), providers=["CPUExecutionProvider"])
    return session.run(None, case.feeds)


def assert_same(before: Path, after: Path) -> None:
    """Both folders say the same, of shapes that the optimizer does not try."""
    config = json.loads((before / "config.json").read_text())
    for graph in graphset.read(before).graphs:
        maker = Maker(graph, config)
        for seed, shape in enumerate((InputShape(2, 5, 3, left=1), InputShape(4, 2, 17), InputShape(1, 11, 1))):
            if shape.past and not maker.cached:
                shape = InputShape(shape.rows, shape.tokens + 2, left=shape.left)
            case = maker.make(shape, 50 + seed)
            assert (
                equivalence.difference(graph.outputs, answers(before, graph, case), answers(after, graph, case), case) < equivalence.BOUND
            )


def assert_in_order(before: Path, after: Path, graphs: GraphSet) -> None:
    """Ports, opset, facts and files are as they were, and nothing is left over."""
    old = graphset.read(before)
    assert graphset.read(after) == graphs
    # Whoever imports the folder's example leaves a folder of Python's in it, at any time.
    names = [sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") for folder in (before, after)]
    assert names[0] == names[1]
    for one, now in zip(old.graphs, graphs.graphs, strict=True):
        assert (now.inputs, now.outputs, now.data) == (one.inputs, one.outputs, one.data)
        onnx.checker.check_model(str(after / now.file), full_check=True)
        first, second = (onnx.load(folder / one.file, load_external_data=False) for folder in (before, after))
        facts = [{prop.key: prop.value for prop in proto.metadata_props} for proto in (first, second)]
        assert facts[0] == facts[1] and facts[0]
        assert (second.producer_name, second.ir_version) == (first.producer_name, first.ir_version)
        opsets = [{entry.domain: entry.version for entry in proto.opset_import} for proto in (first, second)]
        assert opsets[0][""] == opsets[1][""]
        assert now.nodes == len(second.graph.node)


def tampered(how: str) -> Callable[[StepInput], ir.Model]:
    """A step that does one thing wrong, beside something that changes the graph."""

    def apply(subject: StepInput) -> ir.Model:
        model = subject.model
        BREAKAGES[how](model)
        return model

    return apply


def append(model: ir.Model, operator: str, value: ir.Value, *others: ir.Value, **attributes: Any) -> ir.Value:
    node = ir.node(operator, [value, *others], attributes, name=f"added.{operator}.{len(list(model.graph))}")
    node.outputs[0].name = f"{node.name}.out"
    model.graph.append(node)
    return node.outputs[0]


def constant(model: ir.Model, name: str, array: Any) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
    model.graph.register_initializer(value)
    return value


def put_out(model: ir.Model, made: Callable[[ir.Value], ir.Value]) -> None:
    """Let the first output be something made of it, under its name."""
    old = model.graph.outputs[0]
    name, new = old.name, made(old)
    new.type, new.shape = old.type, old.shape
    model.graph.outputs[0] = new
    old.name, new.name = f"{name}.before.{new.producer().name}", name  # type: ignore[union-attr]


def scaled(model: ir.Model) -> None:
    factor = constant(model, "added.factor", np.array(1.0001, np.float32))
    put_out(model, lambda value: append(model, "Mul", value, factor))


def not_a_number(model: ir.Model) -> None:
    zero = constant(model, "added.zero", np.array(0, np.float32))
    put_out(model, lambda value: append(model, "Div", append(model, "Mul", value, zero), zero))


def wrong_for_a_past(model: ir.Model) -> None:
    """Takes only as much of the mask as there are new tokens, as a graph does that was traced without a past."""
    mask = next(value for value in model.graph.inputs if value.name == "attention_mask")
    numbers = [constant(model, f"added.{number}", np.array([number])) for number in range(3)]
    shape = ir.node("Shape", [model.graph.inputs[0]], name="added.shape")
    length = ir.node("Slice", [shape.outputs[0], numbers[1], numbers[2], numbers[0]], name="added.length")
    cut = ir.node("Slice", [mask, numbers[0], length.outputs[0], numbers[1]], name="added.cut")
    for node in (shape, length, cut):
        node.outputs[0].name = f"{node.name}.out"
    ir.convenience.replace_all_uses_with(mask, cut.outputs[0])
    cut.replace_input_with(0, mask)
    model.graph.insert_before(model.graph[0], [shape, length, cut])


def renamed(model: ir.Model) -> None:
    put_out(model, lambda value: append(model, "Identity", value))
    model.graph.outputs[0].name = "scores"


def reordered(model: ir.Model) -> None:
    scaled(model)
    model.graph.outputs[:] = [*model.graph.outputs[1:], model.graph.outputs[0]]


def fixed_axis(model: ir.Model) -> None:
    """Answers for one row only."""
    one = constant(model, "added.shape", np.array([1, -1, 320]))
    put_out(model, lambda value: append(model, "Reshape", value, one))


def unknown_operator(model: ir.Model) -> None:
    put_out(model, lambda value: append(model, "Frobnicate", value))


def other_opset(model: ir.Model) -> None:
    put_out(model, lambda value: append(model, "Identity", value))
    model.graph.opset_imports[""] += 1


def double_weights(model: ir.Model) -> None:
    """Each large weight gets a copy of its own for half of the graph."""
    name, value = max(model.graph.initializers.items(), key=lambda pair: pair[1].const_value.nbytes if pair[1].const_value else 0)
    assert value.const_value is not None
    twin = constant(model, f"{name}.twin", value.const_value.numpy() * np.float32(1))
    other = constant(model, f"{name}.other", value.const_value.numpy() + np.float32(1))
    total = append(model, "ReduceMean", append(model, "Sub", other, twin), keepdims=0)
    one = constant(model, "added.one", np.array(1, np.float32))
    put_out(model, lambda value: append(model, "Add", value, append(model, "Sub", total, one)))


def fails(model: ir.Model) -> None:
    raise KeyError("shape of\nthe value that is not there")


def slowed(model: ir.Model) -> None:
    """The same numbers, after much work that nobody needs."""
    put_out(model, lambda value: append(model, "Identity", value))
    ids, size = model.graph.inputs[0], constant(model, "added.size", np.array([384, 384]))
    number = append(model, "ReduceMean", append(model, "Cast", ids, to=int(ir.DataType.FLOAT)), keepdims=0)
    made = append(model, "Expand", number, size)
    for _ in range(12):
        made = append(model, "Softmax", append(model, "MatMul", made, made))
    zero = constant(model, "added.zero", np.array(0, np.float32))
    none = append(model, "Mul", append(model, "ReduceMean", made, keepdims=0), zero)
    put_out(model, lambda value: append(model, "Add", value, none))


def longer(model: ir.Model) -> None:
    """The same with two nodes more."""
    put_out(model, lambda value: append(model, "Identity", append(model, "Identity", value)))


BREAKAGES: dict[str, Callable[[ir.Model], None]] = {
    "scaled": scaled, "nan": not_a_number, "past": wrong_for_a_past, "renamed": renamed, "reordered": reordered, "fixed": fixed_axis,
    "unknown": unknown_operator, "opset": other_opset, "double": double_weights, "fails": fails, "slowed": slowed, "longer": longer,
}  # fmt: skip
