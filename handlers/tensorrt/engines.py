"""The stages `tensorrt-rtx…` and `tensorrt…`: engines of a bundle's graphs, by the same code that the bundle brings (`box/build.py`).

Run by `handlers/__main__.py`; tensorrt-rtx… with the Python of the toolchain `tensorrt-rtx`, which needs no GPU; tensorrt… in the
environment of ckptd, where TensorRT has to be installed, on a machine with a GPU. What can be said without running an engine is checked:
its inputs and outputs are those of its graph. Whether it computes right is the check's verdict, where there is a GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import not_possible
from handlers.graphs import graphset
from handlers.graphs.attention import marks
from handlers.graphs.graphset import Graph
from handlers.tensorrt.box import build, session
from handlers.tensorrt.options import TensorRtOptions

DEFAULT = "8.0, 8.6, 8.9, 12.0 and later"
"""What TensorRT-RTX builds for where nothing is asked."""


def rtx(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stages `tensorrt-rtx` and `tensorrt-rtx-fp16`. Permanent `form-not-possible`."""
    capabilities = context.work.options(TensorRtOptions).compute_capabilities
    output = _engines(context, reporter, "tensorrt_rtx", capabilities)
    output.figures["compute_capabilities"] = ", ".join(capabilities) or DEFAULT
    return output


def classic(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stages `tensorrt` and `tensorrt-fp16`. Permanent `form-not-possible` without TensorRT or without a GPU."""
    return _engines(context, reporter, "tensorrt", ())


def _engines(context: StageContext, reporter: Reporter, name: str, capabilities: tuple[str, ...]) -> StageOutput:
    source, staging = (
        next(Path(folder) for stage, folder in context.inputs.items() if stage.startswith("tensorrt-bundle")),
        Path(context.staging),
    )
    known = graphset.read(source)
    reporter.progress(0.1, f"building {len(known.graphs)} engines")
    try:
        trt = session.library(name)
        device = session.gpu().name if name == "tensorrt" else ""
        made = build.build_all(source, trt, capabilities=capabilities, target=staging / session.ENGINES)
    except session.Refused as error:
        raise _not_possible(context, str(error).rstrip("."), source, device=isinstance(error, session.NoDeviceError)) from error
    except build.session.Refused as error:  # the builder has read session.py for itself
        raise _not_possible(context, str(error).rstrip("."), source) from error
    for graph in known.graphs:
        _check_ports(context, graph, made[graph.role])
    graphs = tuple(graph.model_copy(update={"file": _file(graph), "data": (), "nodes": made[graph.role].layers}) for graph in known.graphs)
    known.model_copy(update={"graphs": graphs, "opset": 0, "extra": marks.marked(known.extra)}).write(staging)
    reporter.progress(0.9, "copying configuration and tokenizer")
    _copy_beside(source, staging, known)
    figures: dict[str, Any] = {
        "library": str(trt.__version__), "engines": [graph.file for graph in graphs],
        "layers": sum(engine.layers for engine in made.values()),
        "graph_bytes": sum((staging / graph.file).stat().st_size for graph in graphs),
        "max_batch": context.work.options(TensorRtOptions).max_batch,
        "precision": session.built(staging / session.ENGINES)["precision"], **({"device": device} if device else {}),
    }  # fmt: skip
    return StageOutput(figures=figures)


def _file(graph: Graph) -> str:
    return f"{session.ENGINES}/{Path(graph.file).stem}{session.ENDING}"


def _check_ports(context: StageContext, graph: Graph, made: build.Made) -> None:
    """Raises Permanent where the parser's network has other inputs and outputs than the graph."""
    for ports, shapes in ((graph.inputs, made.inputs), (graph.outputs, made.outputs)):
        wanted = {port.name: tuple(-1 if isinstance(size, str) else size for size in port.shape) for port in ports}
        same = wanted.keys() == shapes.keys() and all(
            len(shape) == len(shapes[name])
            and all(size in (-1, given) or given == -1 for size, given in zip(shape, shapes[name], strict=True))
            for name, shape in wanted.items()
        )
        if not same:
            raise Permanent(
                FaultCode.INVALID_GRAPH, f"make the variant {context.stage}", f"the engine of {graph.file} has other inputs or outputs",
                "leave the variant out, and read the attempt's log", path=context.inputs[next(iter(context.inputs))],
            )  # fmt: skip


def _copy_beside(source: Path, staging: Path, known: graphset.GraphSet) -> None:
    """All that lies beside the graphs of a bundle but what only builds engines."""
    graphset.copy_beside(source, staging, known, {"build.py", "build.sh", session.ENGINES})


def _not_possible(context: StageContext, cause: str, path: Path, *, device: bool = False) -> Permanent:
    remedy = f"leave {context.stage} out of export.variants; the bundle can be built where TensorRT and a GPU are"
    if device and context.limits.device == "cpu":
        remedy = f"set limits.device to cuda if this machine has a GPU, else {remedy}"
    return not_possible(context, cause, path, remedy=remedy)
