"""Gives the graphs of a quantized variant a KV cache of int8, where `[onnx] kv_cache` asks for it.

Called by the stages that quantize, once their graphs are written. What is in the cache is measured by texts through the fp32 graphs; the
graphs then run both ways on texts that were not measured, one pass and a token on top of it. Where onnxruntime does not take the result,
or it is not the same model any more, the caches stay as they are and the stage's result says why. Free of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Interrupted, Reporter, StageOutput
from handlers.folder.playback import GraphRun, Player, tokenize
from handlers.graphs import graph_file
from handlers.graphs.attention import marks
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.attention.rounded_cache import round_cache
from handlers.graphs.graphset import Graph, GraphSet
from handlers.graphs.sessions import described
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.accuracy_levels import compare
from handlers.texts.selection import calibration_texts

WANTED = "a KV cache of int8"
TRIALS = 4
"""Texts that are not measured, but tried."""
LIMIT = 0.5
"""Error, in standard deviations of the logits, from which on it is another model. How much less is acceptable, the checks decide."""


def keep_in_int8(context: StageContext, reporter: Reporter, source: GraphSet, made: GraphSet, output: StageOutput) -> None:
    """Change the graphs in the staging folder, and what graphs.json says of them, if that was asked for."""
    options, cached = context.work.options(OnnxOptions), _cached(made)
    if options.kv_cache != "int8" or not cached:
        return
    if options.optimize in ("none", "basic"):
        reason = f'onnx.optimize = "{options.optimize}" keeps the attention over it in the standard\'s operators'
        output.fallbacks.append(Fallback(wanted=WANTED, taken="one of fp32", reason=reason))
        return
    reporter.progress(0.95, "measuring the KV cache")
    staging = Path(context.staging)
    trial = [graph.model_copy(update={"file": f"{graph.file}.cache"}) for graph in made.graphs]
    try:
        changed = _changed(context, source, made, trial, output)
        for graph, before in zip(trial, made.graphs, strict=True):
            (staging / graph.file).replace(staging / before.file)
    except (OSError, MemoryError, Interrupted):
        raise
    except Exception as error:  # onnxruntime's have no class in common, and the graphs are sound as they are
        reason = " ".join(str(error).split())[:300]
        output.fallbacks.append(Fallback(wanted=WANTED, taken="one of fp32", reason=reason))
        return
    finally:
        for graph in trial:
            (staging / graph.file).unlink(missing_ok=True)
    changed.write(staging)


def _changed(context: StageContext, source: GraphSet, made: GraphSet, trial: Sequence[Graph], output: StageOutput) -> GraphSet:
    """Write the graphs of `trial`, and compare them with those that they are made of. OtherFormError where they are not the same model."""
    staging, threads = Path(context.staging), context.limits.threads
    cached = _cached(made)
    if set(cached) - set(marks.roles(made.extra, marks.SHARED)):
        raise OtherFormError("the attention over it is not in onnxruntime's operator")
    folder = Path(context.inputs["onnx"])
    texts = calibration_texts(context, context.work.options(OnnxOptions).calibration_samples, folder).plain
    rows = tokenize(folder, texts).rows
    held = rows[:: max(2, len(rows) // TRIALS)][:TRIALS]
    seen = extents(Player(folder, source, threads), [row for row in rows if row not in held] or rows)
    graphs = []
    for before, graph in zip(made.graphs, trial, strict=True):
        model = ir.load(staging / before.file)
        if graph.role in cached:
            round_cache(model, seen)
        ir.save(model, staging / graph.file)
        del model
        size = (staging / graph.file).stat().st_size
        graphs.append(described(graph.role, graph_file.GraphFile(staging / graph.file, graph.nodes, size, graph.data), threads))
    error, agreement = _difference(staging, made, made.model_copy(update={"graphs": tuple(graphs)}), held, threads)
    if not error <= LIMIT:
        raise OtherFormError(f"its logits differ by {error:.3g} of their standard deviation")
    output.figures |= {
        "kv_cache": "int8", "kv_cache_error": round(error, 6), "kv_cache_agreement": round(agreement, 4), "kv_cache_texts": len(rows)
    }  # fmt: skip
    named = (graph.model_copy(update={"file": before.file}) for graph, before in zip(graphs, made.graphs, strict=True))
    return made.model_copy(update={"graphs": tuple(named)})


def _cached(graphs: GraphSet) -> list[str]:
    """The roles of the graphs that take a cache."""
    return [graph.role for graph in graphs.graphs if any(port.name.startswith("past_key_values.") for port in graph.inputs)]


def extents(player: Player, rows: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Input of a past → largest |x| of each channel of what texts leave there, (K heads of keys, H size of a head)."""
    largest: dict[str, np.ndarray] = {}
    for row in rows:
        for call in player.play(row):
            for name, array in call.outputs.items():
                if name.startswith("present."):
                    past, here = name.replace("present.", "past_key_values.", 1), np.abs(array).max(axis=(0, 2), initial=0.0)
                    largest[past] = np.maximum(largest[past], here) if past in largest else here
    return largest


def _difference(staging: Path, before: GraphSet, after: GraphSet, rows: Sequence[Sequence[int]], threads: int) -> tuple[float, float]:
    """(error, agreement) of the logits, as `compare` has them, of graphs with rounded caches and without."""
    wanted, got = (_logits(Player(staging, graphs, threads), rows) for graphs in (before, after))
    return compare(wanted, (call.outputs for call in got))


def _logits(player: Player, rows: Sequence[Sequence[int]]) -> list[GraphRun]:
    """The calls that give logits, without the rest: a chain's other graphs hand on vectors."""
    calls = (call for row in rows for call in player.play(row) if "logits" in call.outputs)
    return [GraphRun(call.role, {}, {"logits": call.outputs["logits"]}) for call in calls]
