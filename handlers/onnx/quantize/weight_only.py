"""The stages `onnx-int4`, `onnx-int4-fine` and `onnx-int8-weight`: the fp32 graphs with weights of 4 or 8 bits in blocks, each block with
its own scale.

Run by `handlers/__main__.py` on the output of the onnx stage; `[onnx] block_size, symmetric, algorithm, accuracy_level` say how.
onnx-int8-weight is larger than onnx-int8, since scales are kept by block, and many times as exact. Whether the loss of accuracy is
acceptable is the validate stage's verdict; here the graphs must load, keep their names, and have shrunk. Free of torch but for the
algorithm "hqq".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.folder.playback import GraphRun, Player, UnknownInputError, run, tokenize
from handlers.graphs.graphset import Graph, GraphSet, read
from handlers.graphs.rewriting import Counts
from handlers.graphs.sessions import MappedWeights, open_session
from handlers.graphs.weights.spool import LARGE, Spool
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize import derive
from handlers.onnx.quantize.accuracy_levels import EXACT, FAST, choose, compare, measure, rounded_session
from handlers.onnx.quantize.cache import keep_in_int8
from handlers.onnx.quantize.rewriters.block_quantization import Scheme
from handlers.onnx.quantize.rewriters.weight_only_rewriter import WeightOnlyRewriter, set_level
from handlers.texts.selection import calibration_texts

TRIAL_TEXTS = 4
TRIAL_TOKENS = 48
ROWS_BITS = 4
"""The width of weights for which onnxruntime has a kernel, on ARM64, that rounds activations by rows instead of by blocks."""


def int4(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-int4`. A result above 0.3 of the fp32 size is worth a warning."""
    options = context.work.options(OnnxOptions)
    scheme = Scheme(4, options.block_size, options.symmetric, options.algorithm)
    return quantize(context, reporter, scheme, small_enough=0.3)


def int4_fine(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-int4-fine`: half the block, zero points, and values that are searched. A result above 0.35 of the fp32 size is worth
    a warning."""
    options = context.work.options(OnnxOptions)
    scheme = Scheme(4, max(16, options.block_size // 2), symmetric=False, algorithm="k-quant")
    return quantize(context, reporter, scheme, small_enough=0.35)


def int8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-int8-weight`. A result above 0.5 of the fp32 size is worth a warning."""
    options = context.work.options(OnnxOptions)
    scheme = Scheme(8, options.block_size, options.symmetric)
    return quantize(context, reporter, scheme, small_enough=0.5)


def quantize(context: StageContext, reporter: Reporter, scheme: Scheme, small_enough: float) -> StageOutput:
    """Quantize the graphs of the onnx stage into the staging folder and copy the files beside them.

    A result above `small_enough` of the fp32 size is warned of. Permanent `nothing-to-quantize` where no graph has a weight to turn.
    """
    asked = context.work.options(OnnxOptions).accuracy_level

    def turn(_: Graph, model: ir.Model, spool: Spool | None) -> Counts:
        return WeightOnlyRewriter(model, scheme, EXACT if asked < 0 else asked, context.limits.threads, spool).rewrite()

    dtype, operation = f"int{scheme.bits}", f"quantize the ONNX graph to {context.stage}"
    made, output = derive.quantize(
        context, reporter, turn, dtype=dtype, operation=operation, doing=f"turning weights into {dtype}", small_enough=small_enough
    )
    output.figures |= {
        "bits": scheme.bits,
        "block_size": scheme.block_size,
        "algorithm": scheme.algorithm,
        "symmetric": scheme.symmetric and scheme.algorithm == "rtn",
        "accuracy_level": asked,
    }
    source = read(Path(context.inputs["onnx"]))
    if asked < 0:
        reporter.progress(0.9, "measuring accuracy levels")
        choose_level(context, source, made, output, scheme.bits)
    keep_in_int8(context, reporter, source, made, output)
    return output


def choose_level(context: StageContext, source: GraphSet, made: GraphSet, output: StageOutput, bits: int) -> None:
    """Run the graphs at the levels and leave them at the best one; where they can't be run, at the exact one, which is recorded."""
    staging = Path(context.staging)
    try:
        calls = reference_calls(context, source)
    except (UnknownInputError, Permanent) as error:
        taken = f"level {EXACT}, fp32, unmeasured"
        output.fallbacks.append(Fallback(wanted="an accuracy level chosen by measurement", taken=taken, reason=str(error)))
        output.figures["accuracy_level"] = EXACT
        return

    fast = {graph.role: _at_level(staging, graph, FAST) for graph in made.graphs}
    threads = context.limits.threads
    levels = {
        EXACT: lambda: _opened({graph.role: staging / graph.file for graph in made.graphs}, threads),
        FAST: lambda: _opened(fast, threads),
    }
    one_text = -(-len(calls) // TRIAL_TEXTS)  # its share of the calls, rounded up
    trials = measure(levels, calls, calls[:one_text])
    choice = choose(trials, _error_by_rows(staging, made, calls, threads) if bits == ROWS_BITS else None)
    for graph in made.graphs:
        if choice.level == FAST:
            fast[graph.role].replace(staging / graph.file)
        else:
            fast[graph.role].unlink()
    output.figures |= choice.figures


def _opened(paths: Mapping[str, Path], threads: int) -> dict[str, onnxruntime.InferenceSession]:
    weights = MappedWeights(packed=True)
    return {role: open_session(path, threads, weights) for role, path in paths.items()}


def _error_by_rows(staging: Path, made: GraphSet, calls: list[GraphRun], threads: int) -> float:
    """The exact level's error with activations rounded to int8 by rows."""
    sessions = {graph.role: rounded_session(staging / graph.file, threads) for graph in made.graphs}
    return compare(calls, (run(sessions[call.role], call.feeds) for call in calls))[0]


def reference_calls(context: StageContext, source: GraphSet) -> list[GraphRun]:
    """The fp32 graphs' outputs for a few texts, the large ones in files. Permanent if there are no usable texts, UnknownInputError if a
    graph has an unknown input."""
    folder = Path(context.inputs["onnx"])
    tokens = tokenize(folder, calibration_texts(context, TRIAL_TEXTS, folder).plain, longest=TRIAL_TOKENS)
    player = Player(folder, source, context.limits.threads)
    answers = Path(context.temporary) / "answers"
    return [_laid_down(call, answers) for row in tokens.rows for call in player.play(row)]


def _laid_down(call: GraphRun, file: Path) -> GraphRun:
    """The same, with its logits at the end of a file: over a large vocabulary those of a few texts are as large as many layers."""
    outputs = dict(call.outputs)
    for name, array in call.outputs.items():
        if array.nbytes >= LARGE and not name.startswith("present."):
            place = file.stat().st_size if file.exists() else 0
            with open(file, "ab") as stream:
                array.tofile(stream)
            outputs[name] = np.memmap(file, array.dtype, "r", place, array.shape)
    return GraphRun(call.role, call.feeds, outputs)


def _at_level(staging: Path, graph: Graph, level: int) -> Path:
    """A graph with another level, written beside the first, whose weights' file it shares where it has one."""
    model = ir.load(staging / graph.file)
    set_level(model, level)
    path = staging / f"{graph.file}.level"
    ir.save(model, path)
    return path
