"""The stage `onnx-genai-fp16`: a folder for onnxruntime-genai in half precision, for GPUs and for the CPU.

Run by `handlers/__main__.py`. What the builder builds for the CPU in fp16 has no GroupQueryAttention and fails at the second token.
What it builds for CUDA, with the norms of queries and keys as operators of their own, runs on both, since onnxruntime's CPU kernels
know fp16 too; so that is what is built, and it is validated on the CPU.
"""

from __future__ import annotations

from daemon.contract import StageContext
from handlers.onnx.genai import Order, build
from handlers.progress import Reporter, StageOutput


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Build the folder in the staging folder."""
    return build(context, reporter, Order("fp16", "cuda", {"fuse_qk_norm_gqa": "false"}))
