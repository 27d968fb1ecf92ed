"""The stages `litert`, `litert-int8` and `litert-int4`: the programs of fixed sizes as models for LiteRT, and smaller forms of these.

Run by `handlers/__main__.py` with the Python of the toolchain `litert`. Whether the result is right is the check's verdict: every form is
run by LiteRT's interpreter and compared with the live model. What the interpreter does not run is found here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daemon.contract.errors import CkptdError, Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.graphs import graphset
from handlers.graphs.graphset import Graph, GraphSet
from handlers.litert import compression, conversion
from handlers.litert.options import LiteRtOptions
from handlers.litert.session import Session
from handlers.static_programs import placing
from handlers.static_programs.description import LENGTH

SESSION = Path(__file__).with_name("session.py")
SIGNATURES = "signatures"
"""Key in `GraphSet.extra`: role → signature → size of each of its free axes."""
SMALL = frozenset({"int8", "int4"})
ENOUGH = 0.8
"""Share of the weights in 8 or 4 bits below which the result is worth a warning."""


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
        with _faults_of(context, "litert-torch does not convert it"):
            shared += conversion.convert(source / graph.file, graph, wanted, staging / target.file)
        signatures[graph.role] = {one.name: dict(one.axes) for one in wanted}
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


def _smaller(context: StageContext, reporter: Reporter, dtype: str, compress: Callable[[Path, Path, Graph], None]) -> StageOutput:
    source, staging = Path(context.inputs["litert"]), Path(context.staging)
    known = graphset.read(source)
    for number, graph in enumerate(known.graphs):
        reporter.progress(0.05 + 0.8 * number / len(known.graphs), f"compressing {graph.file}")
        with _faults_of(context, "ai-edge-quantizer does not quantize it"):
            compress(source / graph.file, staging / graph.file, graph)
    graphset.copy_beside(source, staging, known)
    figures = _finished(context, reporter, known.model_copy(update={"dtype": dtype}))
    small = sum(count for kind, count in figures["weights"].items() if kind in SMALL)
    share = small / max(1, small + figures["weights"].get("float32", 0))
    figures |= {"library": importlib.metadata.version("ai-edge-quantizer"), "bits": int(dtype[3:]), "small_share": round(share, 4)}
    told = f"{1 - share:.0%} of the weights are left in fp32, since they reach their product by an operator that is not quantized"
    return StageOutput(figures=figures, warnings=[] if share > ENOUGH else [f"{told} (experts of a mixture do)"])


def _finished(context: StageContext, reporter: Reporter, made: GraphSet) -> dict[str, Any]:
    """Describe the models and run them once; what is to say of them."""
    staging = Path(context.staging)
    made.write(staging)
    reporter.progress(0.9, "running the models once")
    weights: Counter[str] = Counter()
    for graph in made.graphs:
        with _faults_of(context, f"LiteRT does not run {graph.file}"):
            _try(Session(staging / graph.file, graph.role, context.limits.threads), graph, made.extra[SIGNATURES][graph.role])
        weights.update(compression.weights(staging / graph.file))
    return {
        "runtime": importlib.metadata.version("ai-edge-litert"), "graphs": {one.role: one.file for one in made.graphs},
        LENGTH: int(made.extra[LENGTH]), SIGNATURES: made.extra[SIGNATURES], "graph_bytes": made.size(staging), "weights": dict(weights),
    }  # fmt: skip


def _try(session: Session, graph: Graph, signatures: Mapping[str, Mapping[str, int]]) -> None:
    """Run every signature once, since LiteRT looks at its operators no sooner."""
    given = {port.name.replace("present.", "past_key_values.", 1) for port in graph.outputs}
    for axes in signatures.values():
        sizes = {port.name: [axes[size] if isinstance(size, str) else size for size in port.shape] for port in graph.inputs}
        types = {port.name: port.dtype for port in graph.inputs}
        session.run(session.start(), {name: np.zeros(shape, types[name]) for name, shape in sizes.items() if name not in given})


@contextlib.contextmanager
def _faults_of(context: StageContext, what: str) -> Iterator[None]:
    """What a library raises becomes Permanent `form-not-possible`: `what`, and the first words of its message."""
    try:
        yield
    except (CkptdError, OSError, MemoryError):
        raise
    except Exception as error:  # converters and the interpreter raise types of their own, all of them about what they don't know
        said = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        remedy = f"leave {context.stage} out of export.variants"
        raise Permanent(FaultCode.FORM_NOT_POSSIBLE, f"make the variant {context.stage}", f"{what} ({said})", remedy) from error
