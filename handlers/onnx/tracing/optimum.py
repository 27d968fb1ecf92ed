"""The exporter of the toolchain `optimum` as a strategy: one run makes all graphs of a model, which are then returned part by part.

Called by `exporters.optimum`. The model is loaded a second time, in the toolchain's own process, so memory holds it twice. Graphs come with
our inputs and outputs in our order; if optimum's have fewer or more, the error names them. The family's check compares them with torch, as
for any other strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from daemon.contract.jobs.messages import StageContext
from handlers.families.base import Part
from handlers.graphs.comparison import GraphMismatchError
from handlers.models.tasks import task_of
from handlers.onnx.options import OnnxOptions
from handlers.toolchains import use
from handlers.toolchains.optimum_export import Exported

NAME = "optimum"
MODULE = "handlers.toolchains.optimum_export"
PAST, PRESENT = "past_key_values.", "present."


def graph_of(part: Part, opset: int, context: StageContext, toolchain: Path, scratch: Path) -> ir.Model:
    """optimum's graph for a part; it runs optimum if `scratch` does not hold its graphs yet; their weights stay there.

    Raises `use.ToolchainFailedError` when it can't, GraphMismatchError when its graph has other inputs or outputs.
    """
    folder = scratch / NAME
    if not folder.exists():
        _export(opset, context, toolchain, scratch, folder)
    path = folder / part.file
    if not path.is_file():
        made = ", ".join(sorted(file.name for file in folder.glob("*.onnx"))) or "nothing"
        raise GraphMismatchError(f"optimum made {made}, and no {part.file}")
    from onnxscript import optimizer  # rarely needed

    model = ir.load(path)
    optimizer.optimize(model)
    _hand_on_what_does_not_change(model, part.signature.outputs)
    for kind, values, names in (
        ("inputs", model.graph.inputs, part.signature.inputs),
        ("outputs", model.graph.outputs, part.signature.outputs),
    ):
        values[:] = _ordered(kind, values, names)
    return model


def _export(opset: int, context: StageContext, toolchain: Path, scratch: Path, folder: Path) -> None:
    source = Path(context.inputs["merge"])
    task = task_of(source)
    if task is None:
        raise GraphMismatchError("optimum needs the model's task to know what to export, and the task is not known")
    work = scratch / f"{NAME}-scratch"
    work.mkdir()
    options = {
        "source": source, "target": folder, "scratch": work, "task": task.name, "opset": opset,
        "cache": int(context.work.options(OnnxOptions).cache),
    }  # fmt: skip
    use.run_module(toolchain, MODULE, options, scratch, Exported)


def _hand_on_what_does_not_change(model: ir.Model, wanted: Sequence[str]) -> None:
    """Also output the encoder's part of the cache, unchanged: optimum's graph leaves it out, since the step does not change it."""
    graph = model.graph
    outputs, inputs = {value.name for value in graph.outputs}, {value.name: value for value in graph.inputs}
    for name in wanted:
        past = inputs.get(name.replace(PRESENT, PAST, 1))
        if name in outputs or ".encoder." not in name or past is None:
            continue
        node = ir.node("Identity", [past], name=f"hand_on.{name}")
        value = node.outputs[0]
        value.name, value.type, value.shape = name, past.type, past.shape
        graph.append(node)
        graph.outputs.append(value)


def _ordered(kind: str, values: Sequence[ir.Value], names: Sequence[str]) -> list[ir.Value]:
    by_name = {str(value.name): value for value in values}
    if set(by_name) != set(names):
        lost, foreign = sorted(set(names) - set(by_name)), sorted(set(by_name) - set(names))
        raise GraphMismatchError(f"the {kind} of optimum's graph differ from those asked for: missing {lost}, unexpected {foreign}")
    return [by_name[name] for name in names]
