"""The stage `onnx-int8-static`: the fp32 graphs with int8 weights, and activations whose ranges were measured beforehand.

Run by `handlers/__main__.py` on the output of the onnx stage. Products with constant weights are quantized and nothing else: to
quantize all operators ruins language models. They are written as QuantizeLinear and DequantizeLinear pairs, which every
runtime reads and onnxruntime fuses; weights have a scale a column, and tables are shared as in onnx-int8. Ranges come from texts on which
nothing is compared (`handlers.texts`). Of two ranges, all that was seen and all but outliers, the one is taken that comes nearer to the
fp32 graph on texts that were not calibrated with. The two graphs of an encoder-decoder's decoder share their ranges. Free of torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.folder.playback import MAX_TOKENS, GraphRun, Player, Tokens, UnknownInputError, tokenize
from handlers.folder.playback import run as run_graph
from handlers.graphs.graph_file import fresh_folder
from handlers.graphs.graphset import Graph, GraphSet, read
from handlers.graphs.rewriting import Counts, Product, find_products
from handlers.graphs.sessions import open_session
from handlers.graphs.weights.spool import Spool
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.accuracy_levels import compare
from handlers.onnx.quantize.activation_ranges import Activation, watch
from handlers.onnx.quantize.cache import keep_in_int8
from handlers.onnx.quantize.derive import quantize
from handlers.onnx.quantize.rewriters.int8_rewriter import Int8Rewriter
from handlers.texts.distribution import Vocabulary, describe
from handlers.texts.rendering import ModelFiles
from handlers.texts.selection import Texts, calibration_texts

OPERATION = "quantize the ONNX graph to int8 with calibration"
SMALL_ENOUGH = 0.5
"""Share of the fp32 size from which on the result is worth a warning."""
HELD_OUT = 4
"""One text in so many chooses between the ranges instead of making them."""
MOST_HELD_OUT = 4
FEW_TOKENS = 500
LITTLE_VOCABULARY = 0.002
"""Below either, calibration is worth a warning."""
Ranges = Mapping[str, tuple[float, float]]


class StaticRewriter(Int8Rewriter):
    """Products between QuantizeLinear and DequantizeLinear; those whose range is not known stay as they are."""

    def __init__(self, model: ir.Model, ranges: Ranges) -> None:
        super().__init__(model)
        self._ranges = ranges
        self._activations: dict[tuple[ir.Value, int], ir.Value] = {}

    def turns(self, product: Product) -> bool:
        return (product.factor.name or "") in self._ranges

    def _activation(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """An activation rounded to uint8 over its range and back, once in a graph however many products read it."""
        place = (value, id(before.graph))
        if place not in self._activations:
            low, high = self._ranges[value.name or ""]
            scale = np.float32(max((high - low) / 255, 1e-12))
            stem = f"{value.name}.static" if before.graph is self.model.graph else f"{before.outputs[0].name}.factor.static"
            scales = self.constant(f"{stem}.scale", np.array(scale, np.float32))
            zero = self.constant(f"{stem}.zero_point", np.array(np.clip(np.rint(-low / scale), 0, 255), np.uint8))
            rounded = self.add(before, "QuantizeLinear", value, scales, zero, name=f"{stem}.uint8")
            self._activations[place] = self.add(before, "DequantizeLinear", rounded.outputs[0], scales, zero, name=f"{stem}.fp32").outputs[
                0
            ]
        return self._activations[place]

    def turn_product(self, product: Product) -> None:
        """Multiply what both were rounded to. A shared table is turned as int8, which the runtime does once, when it loads."""
        node, channel = product.node, 0 if product.transposed else 1
        integer = self.integer(product.weight, channel)
        factor = self._activation(product.factor, node)
        stem = f"{node.outputs[0].name}.static"
        matrix = integer.values
        if product.transposed:
            matrix = self.add(node, "Transpose", matrix, name=f"{stem}.transposed", perm=[1, 0]).outputs[0]
        scales = self.constant(f"{integer.stem}.scale", integer.scales)
        zeros = self.constant(f"{integer.stem}.zero_point", np.zeros(len(integer.scales), np.int8))
        weight = self.add(node, "DequantizeLinear", matrix, scales, zeros, name=f"{stem}.weight", axis=1)
        result = self.add(node, "MatMul", factor, weight.outputs[0], name=f"{stem}.product")
        if product.bias is not None:
            result = self.add(node, "Add", result.outputs[0], product.bias, name=f"{stem}.biased")
        self.replace(node, result)


@dataclass(frozen=True)
class Calibration:
    """Calls to measure ranges with, and others to choose between them."""

    texts: Texts
    tokens: Tokens
    measured: list[GraphRun]
    held_out: list[GraphRun]


def calibrate(context: StageContext, source: GraphSet) -> Calibration:
    """Texts through the fp32 graphs: without a past, and one token on top of the cache. Permanent where that can't be done."""
    folder = Path(context.inputs["onnx"])
    wanted = context.work.options(OnnxOptions).calibration_samples
    texts = calibration_texts(context, wanted, folder)
    tokens = tokenize(folder, texts.plain)
    rows = list(enumerate(tokens.rows))
    held = [number for number, _ in rows if number % HELD_OUT == HELD_OUT - 1][:MOST_HELD_OUT] or [0]
    result = Calibration(texts, tokens, [], [])
    try:
        player = Player(folder, source, context.limits.threads)
        for number, row in rows:
            calls = list(player.play(row))
            if number in held:
                result.held_out.extend(calls)
            if number not in held or len(rows) < HELD_OUT:
                result.measured.extend(GraphRun(call.role, call.feeds, {}) for call in calls)  # logits of all texts would be large
    except UnknownInputError as error:
        raise Permanent(FaultCode.NO_CALIBRATION, OPERATION, str(error), "leave onnx-int8-static out", path=folder) from error
    return result


ONE_DECODER = ("decoder", "decoder_with_past")
"""Roles of graphs that go on with each other's caches: what one rounded over other ranges than the other would not fit."""


class _Chooser:
    """Quantizes one graph with either range and keeps the better one."""

    def __init__(self, context: StageContext, calibration: Calibration, source: GraphSet) -> None:
        self._together = [graph for graph in source.graphs if graph.role in ONE_DECODER]
        self._shared: dict[str, dict[str, Activation]] = {}
        self.ranges: dict[str, str] = {}
        self.errors: dict[str, dict[str, float]] = {}
        self._context = context
        self._calibration = calibration
        self._scratch = Path(context.temporary) / "calibration"

    def __call__(self, graph: Graph, model: ir.Model, _: Spool | None) -> Counts:
        path = Path(self._context.inputs["onnx"]) / graph.file
        seen = self._activations(graph, model)
        ways = {"min-max": _ranges(seen, narrow=False), "percentile": _ranges(seen, narrow=True)}
        errors = {name: self._error(graph, path, ranges) for name, ranges in ways.items()}
        best = min(errors, key=lambda name: errors[name])
        if graph.role in ONE_DECODER:
            best = next((way for role, way in self.ranges.items() if role in ONE_DECODER), best)
        self.ranges[graph.role] = best
        self.errors[graph.role] = {name: round(error, 6) for name, error in errors.items()}
        return StaticRewriter(model, ways[best]).rewrite()

    def _activations(self, graph: Graph, model: ir.Model) -> Mapping[str, Activation]:
        if len(self._together) < 2 or graph.role not in ONE_DECODER:
            return self._watched(graph, [product.factor.name or "" for product in find_products(model)])
        if not self._shared:
            products = {half.role: self._products(half) for half in self._together}
            self._shared = {half.role: self._watched(half, products[half.role].values()) for half in self._together}
            (first, keys), (second, others) = ((self._shared[role], by_key) for role, by_key in products.items())
            for key in keys.keys() & others.keys():
                mine, theirs = first.get(keys[key]), second.get(others[key])
                if mine is not None and theirs is not None and mine is not theirs:  # several products read one value
                    first[keys[key]] = second[others[key]] = mine.with_all_of(theirs)
        return self._shared[graph.role]

    def _products(self, graph: Graph) -> dict[tuple[str, int], str]:
        """Digest of a product's weight, and how many products before it have the same → the value that it multiplies."""
        factors: dict[tuple[str, int], str] = {}
        for product in find_products(ir.load(Path(self._context.inputs["onnx"]) / graph.file)):
            assert product.weight.const_value is not None
            digest = hashlib.sha256(product.weight.const_value.numpy().tobytes()).hexdigest()
            factors[digest, sum(key[0] == digest for key in factors)] = product.factor.name or ""
        return factors

    def _watched(self, graph: Graph, names: Iterable[str]) -> dict[str, Activation]:
        calls = [call for call in self._calibration.measured if call.role == graph.role]
        path = Path(self._context.inputs["onnx"]) / graph.file
        return watch(path, names, calls, self._scratch, threads=self._context.limits.threads)

    def _error(self, graph: Graph, path: Path, ranges: Ranges) -> float:
        """Of the graph with such ranges against the fp32 one, on texts that were held out."""
        model = ir.load(path)
        StaticRewriter(model, ranges).rewrite()
        target = fresh_folder(self._scratch) / graph.file
        ir.save(model, target, external_data=f"{graph.file}.data")
        calls = [call for call in self._calibration.held_out if call.role == graph.role]
        session = open_session(target, self._context.limits.threads)
        error, _ = compare(calls, [run_graph(session, call.feeds) for call in calls])
        del session
        fresh_folder(self._scratch)
        return error


def _ranges(seen: Mapping[str, Activation], *, narrow: bool) -> dict[str, tuple[float, float]]:
    return {name: activation.percentile() if narrow else activation.extremes() for name, activation in seen.items()}


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graphs of the onnx stage into the staging folder and copy the files beside them."""
    folder = Path(context.inputs["onnx"])
    source = read(folder)
    reporter.progress(0.02, "running the calibration texts")
    calibration = calibrate(context, source)
    chooser = _Chooser(context, calibration, source)
    made, output = quantize(
        context, reporter, chooser, dtype="int8", operation=OPERATION, doing="measuring ranges", small_enough=SMALL_ENOUGH
    )
    output.figures |= {
        "ranges": chooser.ranges,
        "range_errors": chooser.errors,
        "calibration": {**calibration.tokens.figures, **_described(calibration, folder)},
    }
    output.warnings[:0] = _warnings(calibration.tokens, context)
    keep_in_int8(context, reporter, source, made, output)
    return output


def _described(calibration: Calibration, folder: Path) -> dict[str, object]:
    """What the calibration texts are like, in the words of those that are compared on."""
    rows = calibration.tokens.rows
    cut = sum(len(row) == MAX_TOKENS for row in rows)
    return describe(calibration.texts, rows, Vocabulary.of(ModelFiles.in_folder(folder)), cut=cut).written()


def _warnings(tokens: Tokens, context: StageContext) -> list[str]:
    figures, asked = tokens.figures, context.work.options(OnnxOptions).calibration_samples
    texts, total, share = len(tokens.rows), sum(map(len, tokens.rows)), figures["vocabulary_share"]
    warnings = []
    if texts < asked:
        warnings.append(
            f"{asked} calibration texts were requested, but only {texts} could be used; validate.data can name a data set with more texts"
        )
    if total < FEW_TOKENS or (isinstance(share, float) and share < LITTLE_VOCABULARY):
        warnings.append(f"ranges were calibrated with {total} tokens, {share:.2%} of the vocabulary: too few to represent the model's use")
    return warnings
