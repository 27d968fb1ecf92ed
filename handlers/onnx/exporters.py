"""The two exporters of torch behind one shape: a request goes in, a graph in onnx_ir comes out.

Called through the table of strategies. Both trace a part's module with its signature's axes dynamic; neither
names them well, which is the finish's work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import onnxscript.optimizer
import torch

from handlers.onnx.families.base import Part

LEGACY_NEWEST_OPSET = 20


@dataclass(frozen=True)
class Request:
    """What an exporter needs."""

    part: Part
    opset: int
    scratch: Path
    """Empty folder for files that the exporter makes on its way."""


Exporter = Callable[[Request], ir.Model]


def dynamo(request: Request) -> ir.Model:
    """torch.export and its ONNX translation."""
    signature = request.part.signature
    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(signature.axes.get(name, {}), dynamic) for name in signature.inputs)
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
        raise RuntimeError("torch.onnx.export gave no program")
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
    onnxscript.optimizer.optimize(model)
    return model
