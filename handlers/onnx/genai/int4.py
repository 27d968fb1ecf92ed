"""The stage `onnx-genai-int4`: a folder for onnxruntime-genai with 4-bit weights, at an accuracy level chosen by measurement.

Run by `handlers/__main__.py`; `[onnx] block_size, symmetric, algorithm, accuracy_level` say how. The builder knows rounding to nearest
and k-quant. Whether the loss of accuracy is acceptable is the validate stage's verdict.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.onnx.genai import int4_levels
from handlers.onnx.genai.source import OPERATION, narrowest_block
from handlers.onnx.genai.stage import BuilderRequest, build
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.accuracy_levels import EXACT


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Build the folder in the staging folder and set its graph to the accuracy level asked for, or to the best one."""
    options = context.work.options(OnnxOptions)
    algorithm, fallbacks = _algorithm(options)
    symmetric = options.symmetric and algorithm == "rtn"
    block, narrowed = _block(Path(context.inputs["merge"]), options, symmetric=symmetric)
    # "default" rounds to nearest too, with the smaller error, but with zero points it can't share one table of embedding and output.
    method = "k_quant" if algorithm == "k-quant" else "default" if symmetric else "rtn"
    asked = options.accuracy_level
    quantization = {
        "accuracy_level": str(EXACT if asked < 0 else asked),
        "block_size": str(block),
        "is_symmetric": str(symmetric).lower(),
        "algo_config": method,
    }
    output = build(context, reporter, BuilderRequest("int4", options=quantization))
    output.fallbacks += [*fallbacks, *narrowed]
    output.figures |= {"bits": 4, "block_size": block, "algorithm": algorithm, "symmetric": symmetric, "accuracy_level": asked}
    if asked < 0:
        reporter.progress(0.9, "measuring accuracy levels")
        int4_levels.settle(context, output)
    return output


def _algorithm(options: OnnxOptions) -> tuple[str, list[Fallback]]:
    """The algorithm to use, and what it stands for."""
    if options.algorithm != "hqq":
        return options.algorithm, []
    reason = "onnxruntime-genai's builder offers only rounding to nearest and k-quant"
    return "k-quant", [Fallback(wanted="the algorithm hqq", taken="k-quant, which searches the values too", reason=reason)]


def _block(folder: Path, options: OnnxOptions, *, symmetric: bool) -> tuple[int, list[Fallback]]:
    """The block size to use, and what it stands for. Permanent where none can be used."""
    if symmetric:
        return options.block_size, []
    block = narrowest_block(folder, options.block_size)
    if block is None:
        cause = f"with zero points and blocks of {options.block_size} or fewer weights, some matrix has an odd number of blocks in a row"
        remedy = 'set onnx.symmetric = true and onnx.algorithm = "rtn", or use onnx-int4'
        raise Permanent(FaultCode.BLOCK_SIZE, OPERATION, cause, remedy, path=folder)
    if block == options.block_size:
        return block, []
    reason = "the quantizer packs zero points in pairs, and some matrix has an odd number of larger blocks in a row"
    return block, [Fallback(wanted=f"blocks of {options.block_size} weights", taken=f"blocks of {block}", reason=reason)]
