"""Decides whether the result of a step is as good as the graph before it: names, form, outputs, size and speed are checked in this order.

Called by `run`. Raises UndoneError with the reason as soon as one check fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
import onnxruntime

from handlers.graphs import graph_file as graphs_on_disk
from handlers.graphs.attention import shared_buffers
from handlers.graphs.graphset import Graph
from handlers.graphs.rewriting import find_lookups, find_products
from handlers.graphs.sessions import MappedWeights, open_session
from handlers.graphs.signature import Ports
from handlers.onnx.optimize.judging.equivalence import difference
from handlers.onnx.optimize.judging.random_inputs import RandomInputs
from handlers.onnx.optimize.judging.timing import Verdict, race
from handlers.onnx.optimize.step import StepReport

GROWTH = 1.01
"""A folder may become this much larger by a step: another spelling costs a few bytes, a weight written twice costs more."""
MORE_BYTES = 8192
"""And this much in any case."""
LEEWAY = 1.1
"""A step that saves copying the cache may take so much longer on top of the short past that is raced."""


SMALL = 64 << 20
"""Bytes of a graph's weights up to which a session may hold them twice."""
HELD = 4 << 20
"""Bytes of a graph's answers up to which they are kept to be compared with those of the next graph."""


class UndoneError(Exception):
    """A step's result is not taken; the message says why."""


class UnchangedError(UndoneError):
    """A step made the same graph again."""


def operators(model: ir.Model) -> Counter[str]:
    """How often each operator occurs, in subgraphs too."""
    return Counter(f"{node.domain}::{node.op_type}" for node in model.graph.all_nodes())


def nodes(model: ir.Model) -> int:
    """Nodes, those of subgraphs too."""
    return sum(operators(model).values())


def foreign(model: ir.Model) -> Counter[str]:
    """Operators that the standard does not have."""
    return Counter(node.op_type for node in model.graph.all_nodes() if node.domain not in ("", "ai.onnx"))


_LARGE = 1024
"""Elements from which on a constant is a weight."""


def only_less(model: ir.Model, before: ir.Model) -> bool:
    """Whether a graph has fewer nodes than before and none of another kind, and the same sizes of weights: it can't be slower then."""
    sizes = [
        Counter((tuple(value.shape or ()), value.dtype) for value in side.graph.initializers.values() if _elements(value) >= _LARGE)
        for side in (model, before)
    ]
    now, then = operators(model), operators(before)
    return now < then and sizes[0] == sizes[1]


def _elements(value: ir.Value) -> int:
    return 0 if value.const_value is None else int(value.const_value.size)


def _signature(graph: Graph) -> Ports:
    """The names of a graph's ports and axes, as `graph_file.name_axes` asks for them."""
    inputs, outputs = (tuple(port.name for port in ports) for ports in (graph.inputs, graph.outputs))
    axes = {
        port.name: {place: axis for place, axis in enumerate(port.shape) if isinstance(axis, str) and axis}
        for port in (*graph.inputs, *graph.outputs)
    }
    return Ports(inputs, outputs, axes)


def settle(model: ir.Model, before: ir.Model, graph: Graph) -> None:
    """Restore what a tool may drop from a graph: its metadata, inputs that nothing reads, readable axis names.

    Names are not given back: a tool that renames an output has changed the graph.
    """
    passes.ClearMetadataAndDocStringPass()(model)
    for cleaning in (passes.RemoveUnusedNodesPass(), passes.RemoveUnusedFunctionsPass(), passes.RemoveUnusedOpsetsPass()):
        cleaning(model)
    model.producer_name, model.producer_version, model.ir_version = before.producer_name, before.producer_version, before.ir_version
    model.metadata_props.clear()
    model.metadata_props.update(before.metadata_props)
    model.graph.name = before.graph.name
    inputs = {value.name: value for value in model.graph.inputs}
    lost = {value.name: value for value in before.graph.inputs if value.name not in inputs and not value.uses()}
    order = [inputs.pop(value.name, None) or lost.get(value.name) for value in before.graph.inputs]
    model.graph.inputs[:] = [*(_unread(value) if value.name in lost else value for value in order if value is not None), *inputs.values()]
    kept = {value.name: value for value in (*before.graph.inputs, *before.graph.outputs)}
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.name in kept:
            value.type, value.shape = kept[value.name].type, kept[value.name].shape
    graphs_on_disk.name_axes(model, _signature(graph))


def _unread(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape)


def check_kept(model: ir.Model, before: ir.Model, *, standard: bool, products: bool) -> None:
    """UnchangedError where a graph changed nothing, UndoneError where it changed what no step may change.

    `standard`: it may bring in no operator that is not of the standard. `products`: each product with a weight must stay one, and
    each table a table, so that other stages find them.
    """
    if operators(model) == operators(before):
        raise UnchangedError("changed nothing")
    if graphs_on_disk.opset(model) != graphs_on_disk.opset(before):
        raise UndoneError(f"opset {graphs_on_disk.opset(model)} instead of {graphs_on_disk.opset(before)}")
    for what in ("inputs", "outputs"):
        names, wanted = ([value.name for value in getattr(side.graph, what)] for side in (model, before))
        if names != wanted:
            lost, strange = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
            raise UndoneError(f"{what} changed: missing {lost}, unexpected {strange}" if lost or strange else f"{what} changed their order")
    if standard and (added := foreign(model) - foreign(before)):
        raise UndoneError(f"operators that the standard does not have: {', '.join(sorted(added))}")
    if products:
        for what, find in (("products with a weight", find_products), ("tables", find_lookups)):
            count, wanted_count = len(find(model)), len(find(before))
            if count < wanted_count:
                raise UndoneError(f"only {count} of {wanted_count} {what} can still be quantized")


def check_ports(session: onnxruntime.InferenceSession, graph: Graph) -> None:
    """UndoneError where onnxruntime reports other inputs or outputs, types or axes than graphs.json."""
    for values, wanted in ((session.get_inputs(), graph.inputs), (session.get_outputs(), graph.outputs)):
        for value, port in zip(values, wanted, strict=True):
            if value.name != port.name or tuple("" if size is None else size for size in value.shape) != port.shape:
                raise UndoneError(f"{value.name} {value.shape} is in the place of {port.name} {list(port.shape)}")


def check_size(before: int, after: int) -> None:
    """UndoneError where weights were written twice."""
    if after > before * GROWTH + MORE_BYTES:
        raise UndoneError(f"larger: {before} → {after} bytes")


class Arena:
    """Compares two graphs on the same inputs. The one before stays open as long as no step is kept.

    `size`: bytes of their weights. Small ones are copied into the order of onnxruntime's kernels once for each session, since else
    each run does it anew; for others that would be memory that a model as large has not left.
    """

    def __init__(
        self, path: Path, graph: Graph, cases: Sequence[RandomInputs], speed: dict[str, RandomInputs], threads: int, size: int
    ) -> None:  # fmt: skip
        self.graph = graph
        self._cases, self._speed, self._threads = cases, speed, threads
        self._weights = MappedWeights(timed=True, packed=size <= SMALL)
        self._before = open_session(path, threads, self._weights)
        self._answers = dict[int, list[Any]]()
        """Case → what the graph before says, as far as it has been asked and the answers are small."""

    def compare(self, path: Path, report: StepReport, report_nodes: tuple[int, int], *, buffers: bool = False, timed: bool = True) -> None:
        """UndoneError unless the graph at `path` says the same, is not slower, and has fewer nodes or is faster.

        `timed`: whether it could be slower.

        `buffers`: it must also say the same where past and present share their buffers, need not have fewer nodes, and may be a little
        slower.
        """
        after = open_session(path, self._threads, self._weights)
        check_ports(after, self.graph)
        answers = dict[int, list[Any]]()
        report.error = max((self._difference(number, after, buffers, answers) for number in range(len(self._cases))), default=0.0)
        before, now = report_nodes
        gain = now >= before and not buffers  # else it is taken unless it is slower
        verdicts = {name: self._race(name, case, after, report, gain) for name, case in self._speed.items()} if timed else {}
        leeway = LEEWAY if buffers else 0.0
        slower = [
            f"{name} {report.ms_before[name]} → {report.ms_after[name]} ms" for name, verdict in verdicts.items()
            if verdict == "slower" and report.ms_after[name] > leeway * report.ms_before[name]
        ]  # fmt: skip
        if slower:
            raise UndoneError(f"slower: {', '.join(slower)}")
        faster = sorted(name for name, verdict in verdicts.items() if verdict == "faster")
        if gain and not faster:
            raise UndoneError("no fewer nodes and not faster")
        report.reason = "; ".join(
            filter(None, [f"faster ({', '.join(faster)})" if faster else "", f"{before - now} nodes fewer" if now < before else ""])
        )
        self._before, self._answers = after, answers

    def _difference(self, number: int, after: onnxruntime.InferenceSession, buffers: bool, answers: dict[int, list[Any]]) -> float:
        """Of one case; what the graph after it says goes to `answers`."""
        case = self._cases[number]
        expected = self._answers[number] if number in self._answers else self._run(self._before, case)
        actual = self._run(after, case)
        for held, said in ((self._answers, expected), (answers, actual)):
            if sum(array.nbytes for array in said) <= HELD:
                held[number] = said
        error = difference(self.graph.outputs, expected, actual, case)
        if buffers and shared_buffers.takes(case.feeds):
            error = max(error, difference(self.graph.outputs, expected, shared_buffers.run(after, case.feeds), case))
        return error

    def _race(self, name: str, case: RandomInputs, after: onnxruntime.InferenceSession, report: StepReport, gain: bool) -> Verdict:
        """The measured times; "slower" counts only if a second measurement confirms it."""
        for _ in range(2):
            measured = race(lambda: self._run(self._before, case), lambda: self._run(after, case), gain=gain)
            report.ms_before[name], report.ms_after[name] = (round(1000 * value, 4) for value in (measured.before, measured.after))
            if measured.verdict != "slower":
                break
        return measured.verdict

    def _run(self, session: onnxruntime.InferenceSession, case: RandomInputs) -> list[Any]:
        answers: list[Any] = session.run(None, case.feeds)
        return answers
