"""Writes a GGUF file a few rows at a time: header, keys, table of tensors, then each tensor at a multiple of 32 bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from handlers.child.variants import NotPossible
from handlers.gguf.file.architectures import Part, Planned
from handlers.gguf.file.weights import Weights

FILE_TYPES = {
    "f32": (gguf.LlamaFileType.ALL_F32, Type.F32), "f16": (gguf.LlamaFileType.MOSTLY_F16, Type.F16),
    "bf16": (gguf.LlamaFileType.MOSTLY_BF16, Type.BF16), "q8_0": (gguf.LlamaFileType.MOSTLY_Q8_0, Type.Q8_0),
}  # fmt: skip
"""What is written without llama.cpp: name → what the file says of itself, type of its matrices."""
EXACT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "patch_embd.weight", "patch_embd.weight.1",
    "mm.input_projection.weight",
)  # fmt: skip
"""Ends of the names of what is small and stays in fp32, beside all vectors."""
LARGEST_HALF = 65504.0


class TooLarge(Exception):
    """A weight that half precision can't hold; the message is a clause."""


def type_of(tensor: Planned, wanted: Type) -> Type:
    """The type in which a tensor is written, where the matrices are to be `wanted`."""
    if len(tensor.shape) < 2 or tensor.name.endswith(EXACT) or tensor.values is not None:
        return Type.F32
    block, _ = gguf.GGML_QUANT_SIZES[wanted]
    return wanted if tensor.shape[-1] % block == 0 else Type.F16


def size_of(shape: Sequence[int], kind: Type) -> int:
    """Bytes of a tensor."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return int(np.prod(shape, dtype=np.int64)) // int(block) * int(size)


def write(
    writer: gguf.GGUFWriter, path: Path, tensors: Sequence[Planned], weights: Weights, wanted: Type, said: Callable[[float], None]
) -> dict[str, int]:
    """Write the file of a writer that has its keys; gives type → weights in it. `said` is told which share is done.

    Raises TooLarge, and NotPossible for weights that are no numbers.
    """
    kinds = {tensor.name: type_of(tensor, wanted) for tensor in tensors}
    for tensor in tensors:
        kind = kinds[tensor.name]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size_of(tensor.shape, kind), raw_dtype=kind)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        stream, counts = writer.fout[0], dict[str, int]()
        writer.write_padding(stream, stream.tell())
        for number, tensor in enumerate(tensors):
            said(number / len(tensors))
            kind, written = kinds[tensor.name], 0
            for block in values(tensor, weights):
                if not np.isfinite(block).all():
                    raise NotPossible(f"{tensor.name} has a weight that is no finite number")
                if kind is Type.F16 and np.abs(block).max(initial=0.0) > LARGEST_HALF:
                    raise TooLarge(f"{tensor.name} has a weight beyond 65,504, the largest number of half precision")
                data = gguf.quants.quantize(np.ascontiguousarray(block), kind)
                stream.write(data.tobytes())
                written += data.nbytes
            assert written == size_of(tensor.shape, kind), tensor.name
            writer.write_padding(stream, written)
            counts[kind.name] = counts.get(kind.name, 0) + int(np.prod(tensor.shape, dtype=np.int64))
    finally:
        writer.close()
    return counts


def values(tensor: Planned, weights: Weights) -> Iterator[np.ndarray]:
    """What a tensor holds in fp32, some of its first axis at a time."""
    if tensor.values is not None:
        yield tensor.values
    for part in tensor.parts:
        yield from _rows(part, weights)


def _rows(part: Part, weights: Weights) -> Iterable[np.ndarray]:
    if part.change is None:
        return weights.blocks(part.source)
    if part.whole:
        return [part.change(weights.rows(part.source))]
    return map(part.change, weights.blocks(part.source))
