"""The forms of the artifacts: weights of a model as a form stores them, read back, so that PyTorch computes what a runtime of it would.

Each is written here from the definition of its numbers, and shares no code with the formats. Forms that round activations too are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks._gate.faults import Tensors, matrices

NF4 = (
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
)  # fmt: skip
"""The code book of QLoRA (arXiv:2305.14314, appendix E)."""
Rounding = Callable[[Any], Any]


def _blocks(matrix: Any, size: int) -> Any:
    """Give rows in blocks (…, blocks, size); None where they can't be cut so."""
    return matrix.view(*matrix.shape[:-1], -1, size) if matrix.shape[-1] % size == 0 else None


def _in_blocks(size: int, rounded: Rounding) -> Rounding:
    def rounding(matrix: Any) -> Any:
        blocks = _blocks(matrix, size)
        return matrix if blocks is None else rounded(blocks).view(matrix.shape)

    return rounding


def _symmetric(bits: int) -> Rounding:
    def rounded(blocks: Any) -> Any:
        most = 2 ** (bits - 1) - 1
        step = (blocks.abs().amax(dim=-1, keepdim=True) / most).half().float().clamp(min=1e-7)
        return (blocks / step).round().clamp(-most - 1, most) * step

    return rounded


def _asymmetric(bits: int) -> Rounding:
    def rounded(blocks: Any) -> Any:
        low, high = blocks.amin(dim=-1, keepdim=True).clamp(max=0), blocks.amax(dim=-1, keepdim=True).clamp(min=0)
        step = ((high - low) / (2**bits - 1)).clamp(min=1e-7)
        zero = (-low / step).round()
        return ((blocks / step).round() + zero).clamp(0, 2**bits - 1).sub(zero) * step

    return rounded


def _nf4(blocks: Any) -> Any:
    import torch

    scale = blocks.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)
    book = torch.tensor(NF4)
    between = (book[1:] + book[:-1]) / 2
    return book[torch.bucketize((blocks / scale).contiguous(), between)] * scale


PLAIN = "as merged"
FORMS: dict[str, tuple[str, Rounding | None]] = {
    PLAIN: ("pytorch", None),
    "fp16": ("pytorch-fp16", lambda matrix: matrix.half()),
    "bf16": ("pytorch-bf16", lambda matrix: matrix.bfloat16()),
    "int8 a row": ("pytorch-bnb-int8", _symmetric(8)),
    "int8 in blocks of 32": ("onnx-int8-weight", _in_blocks(32, _asymmetric(8))),
    "int4 in blocks of 32": ("onnx-int4", _in_blocks(32, _asymmetric(4))),
    "nf4 in blocks of 32": ("pytorch-bnb-nf4", _in_blocks(32, _nf4)),
    "Q8_0": ("gguf-q8_0", _in_blocks(32, _symmetric(8))),
}
"""Form → the variant by whose limits it is judged, and how each matrix of the layers is rounded."""


def as_stored(form: str, tensors: Tensors) -> Tensors:
    """Give the weights of a form: rounded matrices in fp32, or all in the form's 16 bits."""
    rounding = FORMS[form][1]
    if rounding is None:
        return tensors
    if form in ("fp16", "bf16"):
        return {name: rounding(tensor) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    rounded = {name: rounding(tensors[name].float().contiguous()).contiguous() for name in matrices(tensors)}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()} | rounded
