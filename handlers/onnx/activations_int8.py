"""The stage `onnx-activations-int8`: the graph with activations, with int8 weights as in onnx-int8. The activations stay fp32.

Run by `handlers/__main__.py`. Free of torch.
"""

from __future__ import annotations

from daemon.contract import StageContext
from handlers.onnx import int8
from handlers.onnx.activations_forms import run_on_activations
from handlers.progress import Reporter, StageOutput


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graph of the onnx-activations stage into the staging folder."""
    return run_on_activations(int8.run, context, reporter)
