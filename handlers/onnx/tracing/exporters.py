"""The exporters behind one interface: a request in, an onnx_ir graph out.

Called through the table of strategies. The two of torch trace a part's module with its signature's axes dynamic; neither names the axes
well, so `graph_file` renames them later. optimum's exporter runs in its own environment and raises NotInstalledError if that is not
installed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch

from daemon.contract.jobs.messages import StageContext
from handlers.families.base import Part
from handlers.onnx.optimize.matching import by_operator
from handlers.onnx.tracing import optimum as toolchain_engine
from handlers.onnx.tracing.lowering import lightly
from handlers.onnx.tracing.shortcuts import shortcuts
from handlers.toolchains import use

LEGACY_NEWEST_OPSET = 20


class NotInstalledError(Exception):
    """The exporter is not installed; the message says how to install it."""


@dataclass(frozen=True)
class Request:
    """What an exporter needs."""

    part: Part
    opset: int
    scratch: Path
    """Folder for the exporter's temporary files: empty at a strategy's first part."""
    context: StageContext | None = None
    """The context of the attempt; an exporter that needs another environment finds it through this."""


Exporter = Callable[[Request], ir.Model]


def dynamo(request: Request) -> ir.Model:
    """torch.export and its ONNX translation; what can't be translated as it is, is decomposed first."""
    ways, used = Counter({"": 1}), list[str]()  # where the short ways themselves fail, the long one is another
    try:
        with lightly() as ways, shortcuts() as used, by_operator():
            return _translated(request)
    except Exception:
        if not ways[""] and not used:
            raise
    return _translated(request)


def _translated(request: Request) -> ir.Model:
    signature = request.part.signature
    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(signature.axes.get(name, {}), dynamic) or None for name in signature.inputs)
    with torch.no_grad():
        program = torch.onnx.export(
            request.part.module,
            request.part.example,
            dynamo=True,
            input_names=list(signature.inputs),
            output_names=list(signature.outputs),
            dynamic_shapes=(shapes,),
            opset_version=request.opset,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program.model


def legacy(request: Request) -> ir.Model:
    """The TorchScript tracer, which records one pass and so takes models that torch.export refuses.

    Its own constant folding is left out: it would write a tied embedding twice.
    """
    signature = request.part.signature
    path = request.scratch / "traced.onnx"
    with torch.no_grad():
        torch.onnx.export(
            request.part.module,
            request.part.example,
            str(path),
            dynamo=False,
            input_names=list(signature.inputs),
            output_names=list(signature.outputs),
            dynamic_axes={name: dict(axes) for name, axes in signature.axes.items()},
            opset_version=request.opset,
            do_constant_folding=False,
        )
    model = ir.load(path)
    from onnxscript import optimizer  # rarely needed

    optimizer.optimize(model)
    return model


def optimum(request: Request) -> ir.Model:
    """The exporter of optimum-onnx, whose requirements contradict ours: so it runs in its own environment."""
    toolchain = use.find(request.context, toolchain_engine.NAME) if request.context is not None else None
    if request.context is None or toolchain is None:
        raise NotInstalledError("the toolchain optimum is not installed: ckptd toolchain install optimum")
    return toolchain_engine.graph_of(request.part, request.opset, request.context, toolchain, request.scratch)
