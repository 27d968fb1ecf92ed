"""The stages `litert`, `litert-int8` and `litert-int4`: the programs of fixed sizes as models for LiteRT, and smaller forms of these.

Run by `handlers/__main__.py` with the Python of the toolchain `litert`. Whether the result is right is the check's verdict: every form is
run by LiteRT's interpreter and compared with the live model. What the interpreter does not run is found here.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import UNREACHED, refusing, warn_of_little
from handlers.graphs import graphset, smaller
from handlers.graphs.graphset import Graph, GraphSet
from handlers.litert import compression, conversion
from handlers.litert.options import LiteRtOptions
from handlers.litert.session import Session
from handlers.static_programs.description import LENGTH
from handlers.static_programs.published import placing

SESSION = Path(__file__).with_name("session.py")
SIGNATURES = "signatures"
"""Key in `GraphSet.extra`: role → signature → size of each of its free axes."""
SMALL = frozenset({"int8", "int4"})


def plain(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `litert`. Permanent `form-not-possible`."""
    source, staging = Path(context.inputs["static-programs"]), Path(context.staging)
    torch.set_num_threads(context.limits.threads)
    known = graphset.read(source)
    length, bounds = int(known.extra[LENGTH]), known.extra["bounds"]
    graphs, signatures, shared = [], {}, 0
    for number, graph in enumerate(known.graphs):
        reporter.progress(0.05 + 0.8 * number / len(known.graphs), f"converting {graph.file}")
        target = graph.model_copy(update={"file": f"{Path(graph.file).stem}.tflite"})
        wanted = conversion.signatures(graph, bounds[graph.role], length)
        with refusing(context, "litert-torch does not convert it"):
            shared += conversion.convert(source / graph.file, graph, wanted, staging / target.file)
        signatures[graph.role] = {signature.name: dict(signature.axes) for signature in wanted}
        graphs.append(target)
    made = known.model_copy(update={"graphs": tuple(graphs), "extra": {**known.extra, SIGNATURES: signatures}})
    graphset.copy_beside(source, staging, known)
    placing.place(known.task, staging, SESSION, "ai-edge-litert")
    figures = {"library": importlib.metadata.version("litert-torch"), "products_of_shared_heads": shared}
    return StageOutput(figures=figures | _finished(context, reporter, made))


def int8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `litert-int8`. Permanent `form-not-possible`."""
    return _smaller(context, reporter, "int8", lambda source, target, graph: compression.int8(source, target))


def int4(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `litert-int4`. Permanent `form-not-possible`."""
    block, blocks = context.work.options(LiteRtOptions).block_size, Counter[int]()

    def compress(source: Path, target: Path, graph: Graph) -> None:
        logits = next((port.shape[-1] for port in graph.outputs if port.name == "logits"), None)
        blocks.update(compression.int4(source, target, block, logits if isinstance(logits, int) else None))

    output = _smaller(context, reporter, "int4", compress)
    output.figures |= {"block_size": block, "blocks": {str(size) if size else "rows": count for size, count in sorted(blocks.items())}}
    return output


def _smaller(context: StageContext, reporter: Reporter, dtype: str, compress: smaller.Compress) -> StageOutput:
    made = smaller.compressed(context, reporter, "litert", dtype, compress, "ai-edge-quantizer")
    figures = _finished(context, reporter, made)
    weights = {kind: count for kind, count in figures["weights"].items() if kind in {*SMALL, "float32"}}
    figures |= smaller.figures(dtype, "ai-edge-quantizer", weights, SMALL)
    return StageOutput(figures=figures, warnings=warn_of_little(figures["small_share"], UNREACHED))


def _finished(context: StageContext, reporter: Reporter, made: GraphSet) -> dict[str, Any]:
    """Describe the models and run them once; what is to say of them."""
    staging = Path(context.staging)
    made.write(staging)
    reporter.progress(0.9, "running the models once")
    weights: Counter[str] = Counter()
    for graph in made.graphs:
        with refusing(context, f"LiteRT does not run {graph.file}"):
            _try(Session(staging / graph.file, graph.role, context.limits.threads), graph, made.extra[SIGNATURES][graph.role])
        weights.update(compression.weights(staging / graph.file))
    return {
        "runtime": importlib.metadata.version("ai-edge-litert"), "graphs": {graph.role: graph.file for graph in made.graphs},
        LENGTH: int(made.extra[LENGTH]), SIGNATURES: made.extra[SIGNATURES], "graph_bytes": made.size(staging), "weights": dict(weights),
    }  # fmt: skip


def _try(session: Session, graph: Graph, signatures: Mapping[str, Mapping[str, int]]) -> None:
    """Run every signature once, since LiteRT looks at its operators no sooner."""
    given = {port.name.replace("present.", "past_key_values.", 1) for port in graph.outputs}
    for axes in signatures.values():
        sizes = {port.name: [axes[size] if isinstance(size, str) else size for size in port.shape] for port in graph.inputs}
        types = {port.name: port.dtype for port in graph.inputs}
        session.run(session.start(), {name: np.zeros(shape, types[name]) for name, shape in sizes.items() if name not in given})
