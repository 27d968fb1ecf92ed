"""The stage `onnx-int4`: the fp32 graphs with 4-bit weights.

Run by `handlers/__main__.py` on the output of the onnx stage; `[onnx] block_size, symmetric, algorithm, accuracy_level` say how.
"""

from __future__ import annotations

from daemon.contract import StageContext
from handlers.onnx.weight_only_blocks import Scheme
from handlers.onnx.weight_only_stage import quantize
from handlers.progress import Reporter, StageOutput

SMALL_ENOUGH = 0.3
"""Share of the fp32 size from which on the result is worth a warning."""


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Quantize the graphs of the onnx stage into the staging folder and copy the files beside them."""
    options = context.work.onnx
    scheme = Scheme(4, options.block_size, options.symmetric, options.algorithm)
    return quantize(context, reporter, scheme, variant="onnx-int4", small_enough=SMALL_ENOUGH)
