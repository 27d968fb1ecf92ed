"""The stage `onnx-fp16`: the fp32 graphs in half precision.

Run by `handlers/__main__.py` on the output of the onnx stage. Cache, hidden states and other float inputs and outputs are fp16,
as runtimes expect of such a folder and so that a cache takes half the memory; logits are fp32, so that a softmax over them needs no
care. Vectors of texts, and the hidden states beside them, are fp32 too, since sentence-transformers applies fp32 modules to them. The
graphs are run on a few texts beside the fp32 ones: values that are not finite, or far off, fail the stage. On a CPU
onnxruntime computes most of it in fp32 between casts: the gain there is size, the gain in speed is that of other devices.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.folder.playback import GraphRun, UnknownInputError
from handlers.folder.playback import run as run_graph
from handlers.graphs.attention.fusing import spell_out
from handlers.graphs.graphset import MEDIA, Graph, GraphSet, read
from handlers.graphs.rewriting import SENTENCE_OUTPUT
from handlers.graphs.sessions import open_session
from handlers.onnx.quantize.accuracy_levels import compare
from handlers.onnx.quantize.activation_ranges import watch
from handlers.onnx.quantize.derive import derive, sizes, too_large
from handlers.onnx.quantize.rewriters.fp16_rewriter import LARGEST, Converted, HalfRewriter
from handlers.onnx.quantize.weight_only import reference_calls

OPERATION = "convert the ONNX graph to fp16"
BOUND = 0.05
"""Largest error against the fp32 graph, root mean square in units of its outputs' standard deviation; sound graphs stay below 0.005."""
SMALL_ENOUGH = 0.6
"""Share of the fp32 size from which on the result is worth a warning."""
HEADROOM = 0.5
"""Share of fp16's range from which on a measured value counts as overflowing; other texts may reach further."""
FLUSHED = 0.01
"""Share of elements that became zero from which on it is worth a warning."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Convert the graphs of the onnx stage into the staging folder and copy the files beside them."""
    source = read(Path(context.inputs["onnx"]))
    converted: list[Converted] = []
    output = StageOutput()
    calls = _calls(context, source, output)
    peaks: dict[str, float] = {}

    def halve(graph: Graph, model: ir.Model) -> ir.Model:
        names = [port.name for port in graph.outputs]
        wide = frozenset(names if SENTENCE_OUTPUT in names else (name for name in names if name.endswith("logits")))
        overflowing = _overflowing(context, graph, model, calls)
        peaks.update(overflowing)
        # Which values stay in fp32 is known of the standard's operators.
        converted.append(HalfRewriter(spell_out(model), wide, frozenset(overflowing)).rewrite())
        return model

    made = derive(context, reporter, halve, dtype="float16", operation=OPERATION, doing="turning weights into fp16", quantized=False)
    output.figures = _figures(converted) | sizes(context, made)
    output.warnings += [*_warnings(converted, peaks), *too_large(context, made, SMALL_ENOUGH)]
    if calls:
        reporter.progress(0.9, "running it beside the fp32 graph")
        _verify(context, calls, made, output)
    return output


def _calls(context: StageContext, source: GraphSet, output: StageOutput) -> list[GraphRun]:
    """The fp32 graphs' outputs for a few texts; none if they can't be run here, which is recorded."""
    reason = "it is a model of pictures or sound, which no text runs"
    if MEDIA.isdisjoint(port.name for port in source.graphs[0].inputs):
        try:
            return reference_calls(context, source)
        except (UnknownInputError, Permanent) as error:
            reason = str(error)
    wanted, taken = "activations measured and compared with the fp32 graph", "norms, angles and large weights in fp32, unmeasured"
    output.fallbacks.append(Fallback(wanted=wanted, taken=taken, reason=reason))
    return []


def _overflowing(context: StageContext, graph: Graph, model: ir.Model, calls: list[GraphRun]) -> dict[str, float]:
    """Value → its largest size, of those that come near the end of fp16's range in the fp32 graph.

    Measured there, since on a CPU onnxruntime computes many fp16 nodes in fp32 and would not show it.
    """
    here = [call for call in calls if call.role == graph.role]
    if not here:
        return {}
    names = [value.name or "" for node in model.graph for value in node.outputs if value.dtype == ir.DataType.FLOAT]
    path = Path(context.inputs["onnx"]) / graph.file
    seen = watch(path, names, here, Path(context.temporary) / "peaks", threads=context.limits.threads, extremes_only=True)
    sizes = {name: max(-activation.lowest, activation.highest) for name, activation in seen.items()}
    return {name: size for name, size in sizes.items() if size > HEADROOM * LARGEST}


def _figures(converted: list[Converted]) -> dict[str, object]:
    kept = sum((conversion.kept_nodes for conversion in converted), start=type(converted[0].kept_nodes)())
    return {
        "converted_tensors": sum(conversion.weights for conversion in converted),
        "kept_fp32_nodes": sum(kept.values()),
        "kept_fp32": dict(sorted(kept.items())),
        "kept_fp32_weights": sum(len(conversion.too_large) for conversion in converted),
        "casts": sum(conversion.casts for conversion in converted),
        "flushed_to_zero": sum(conversion.flushed for conversion in converted),
    }


def _warnings(converted: list[Converted], peaks: dict[str, float]) -> list[str]:
    warnings = []
    if peaks:
        name = max(peaks, key=lambda name: peaks[name])
        warnings.append(
            f"{len(peaks)} values come close to the limit of fp16's range ({name} reached {peaks[name]:.3g}): their nodes stay fp32"
        )
    if too_wide := sorted({name for conversion in converted for name in conversion.too_large}):
        warnings.append(f"{len(too_wide)} weights hold values beyond fp16's range and stay fp32, for example {too_wide[0]}")
    flushed, elements = sum(conversion.flushed for conversion in converted), sum(conversion.elements for conversion in converted)
    if elements and flushed > FLUSHED * elements:
        warnings.append(f"{flushed / elements:.1%} of the weights are too small for fp16 and became zero")
    return warnings


def _verify(context: StageContext, calls: list[GraphRun], made: GraphSet, output: StageOutput) -> None:
    """Compare both on a few texts; Permanent `fp16-overflow` where the half's values are not finite or far off."""
    staging = Path(context.staging)
    sessions = {graph.role: open_session(staging / graph.file, context.limits.threads) for graph in made.graphs}
    error, agreement = compare(calls, [run_graph(sessions[call.role], call.feeds) for call in calls])
    output.figures |= {"error_to_onnx": round(error, 6), "agreement_with_onnx": round(agreement, 4)}
    if not error <= BOUND:
        said = "gives values that are not finite" if error == float("inf") else f"is {error:.2g} standard deviations off"
        remedy = "use onnx-int8-weight, whose activations stay fp32, and leave onnx-fp16 out"
        raise Permanent(FaultCode.FP16_OVERFLOW, OPERATION, f"the fp16 graph {said}, unlike the fp32 one", remedy, path=staging)
