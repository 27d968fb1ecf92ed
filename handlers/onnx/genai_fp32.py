"""The stage `onnx-genai-fp32`: a folder for onnxruntime-genai in full precision. Run by `handlers/__main__.py`."""

from __future__ import annotations

from daemon.contract import StageContext
from handlers.onnx.genai import Order, build
from handlers.progress import Reporter, StageOutput


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Build the folder in the staging folder."""
    return build(context, reporter, Order("fp32"))
