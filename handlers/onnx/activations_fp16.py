"""The stage `onnx-activations-fp16`: the graph with activations in half precision, as in onnx-fp16. The activations are fp16 too.

Run by `handlers/__main__.py`. Free of torch.
"""

from __future__ import annotations

from daemon.contract import StageContext
from handlers.onnx import fp16
from handlers.onnx.activations_forms import run_on_activations
from handlers.progress import Reporter, StageOutput


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Convert the graph of the onnx-activations stage into the staging folder."""
    return run_on_activations(fp16.run, context, reporter)
