"""The stage `onnx-int8-weight`: the fp32 graphs with 8-bit weights in blocks, and activations that stay fp32.

Run by `handlers/__main__.py` on the output of the onnx stage; `[onnx] block_size, symmetric, accuracy_level` say how. Larger than
onnx-int8, since scales are kept by block, and many times as exact.
"""

from __future__ import annotations

from daemon.contract import StageContext
from handlers.onnx.weight_only_blocks import Scheme
from handlers.onnx.weight_only_stage import quantize
from handlers.progress import Reporter, StageOutput

SMALL_ENOUGH = 0.5
"""Share of the fp32 size from which on the result is worth a warning."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graphs of the onnx stage into the staging folder and copy the files beside them."""
    options = context.work.onnx
    return quantize(
        context, reporter, Scheme(8, options.block_size, options.symmetric), variant="onnx-int8-weight", small_enough=SMALL_ENOUGH
    )
