"""The weights that a GGUF file stores, as the comparison with the twin sees them. Shares nothing with what writes the file.

Numbers are those that the package gguf unpacks. What llama.cpp's quantizers can have made of a weight follows from their source,
https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-quants.c. A number of a K-quant is the nearest one to its weight: the
quantizers choose it anew for the scales and minima as they are stored. Those are rounded themselves, in steps of the super-block's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from handlers.gguf.reading import header, stored
from handlers.validate.twins.weights import SLACK, Part, UnreadableError, Use

TABLES = ("token_embd.weight", "position_embd.weight")
HEAD = "output.weight"
TURNED = {"llama": ("attn_q.weight", "attn_k.weight")}
"""Architecture → ends of the names of weights whose rows change places: `LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py."""
SEARCHED = 0.1
"""Share of a row of Q5_0 or Q5_1 whose numbers may be more than a step away from their weights: a scale is fitted to numbers that were
chosen for another one. Measured: up to 0.073."""
CLIPPED = 4
"""How many times as large as its scale says a block may be, where most of it does not matter by the importance of columns."""
STEPS_OF_SCALES = 63
"""The largest scale of a block within a super-block of Q4_K and Q5_K."""


@dataclass(frozen=True)
class Tensor:
    """One matrix or table of a file; see `handlers.validate.twins.weights.Stored`."""

    name: str
    use: Use
    data: np.ndarray
    """Rows of bytes, as the file has them."""
    kind: Any
    """gguf.GGMLQuantizationType."""
    columns: int
    places: np.ndarray | None = field(default=None, repr=False)
    """Row of transformers → row of the file; None where they are the same."""
    role: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data), self.columns

    @property
    def block(self) -> int:
        return _KINDS[self.kind.name].block

    @property
    def levels(self) -> int:
        return _KINDS[self.kind.name].levels

    def part(self, rows: slice | np.ndarray) -> Part:
        """See `Stored.part`."""
        chosen = self.data[rows] if self.places is None else self.data[self.places[rows]]
        return _KINDS[self.kind.name].part(np.ascontiguousarray(chosen), self.kind)


def weights(path: Path) -> list[Tensor]:
    """The matrices of a file, each for each use: a table that is the head too, for both. UnreadableError for a type that is not known."""
    known = header.read(path)
    names = {entry.name for entry in known.entries}
    matrices: list[Tensor] = []
    for tensor in stored.tensors(path, known):
        if len(tensor.shape) < 2 or not tensor.name.endswith(".weight"):
            continue
        if tensor.kind.name not in _KINDS:
            raise UnreadableError(f"what the type {tensor.kind.name} of {tensor.name} may be is not known here")
        use: Use = "table" if tensor.name in TABLES else "product"
        places = _places(known.keys, tensor.name, len(tensor.rows))
        matrices.append(Tensor(tensor.name, use, tensor.rows, tensor.kind, tensor.shape[-1], places))
        if tensor.name == TABLES[0] and HEAD not in names:
            matrices.append(Tensor(tensor.name, "product", tensor.rows, tensor.kind, tensor.shape[-1]))
    return matrices


def about(path: Path) -> tuple[str, int]:
    """What llama.cpp takes the model of a file for, and the positions that the file says it knows."""
    keys = header.read(path).keys
    architecture = str(keys["general.architecture"])
    return architecture, int(keys.get(f"{architecture}.context_length", 0))


def _places(keys: Mapping[str, Any], name: str, rows: int) -> np.ndarray | None:
    """For queries and keys whose rotary positions turn neighbours in llama.cpp, and halves of a head in transformers."""
    arch = str(keys["general.architecture"])
    if not any(name.endswith(end) for end in TURNED.get(arch, ())):
        return None
    heads = int(keys[f"{arch}.attention.head_count"])
    if "attn_k" in name:
        heads = int(keys.get(f"{arch}.attention.head_count_kv", heads))
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True)
class _Kind:
    part: Callable[[np.ndarray, Any], Part]
    block: int = 0
    levels: int = 0


def _floats(data: np.ndarray, kind: Any) -> Part:
    values = gguf.quants.dequantize(data, kind)
    bits = {"F32": 23, "F16": 10, "BF16": 7}[kind.name]
    exponents = np.maximum(np.frexp(values)[1] - 1, -14 if bits == 10 else -126)
    return Part(values, np.ldexp(np.float32(1), exponents - bits), np.ones(values.shape, bool))


def _q8_0(data: np.ndarray, kind: Any) -> Part:
    """Scale (f16), 32 × int8, which were chosen for the scale before it was rounded to f16."""
    scale = _halves(data.reshape(len(data), -1, 34)[..., :2])
    steps = np.repeat(scale, 32, axis=1)
    near = SLACK * steps + 128 * np.repeat(_ulp(scale), 32, axis=1) / 2
    return Part(gguf.quants.dequantize(data, kind), steps, steps > 0, near, near)


def _q5(data: np.ndarray, kind: Any) -> Part:
    """Q5_0: scale (f16), 32 numbers from -16 to 15. Q5_1: scale and minimum (f16), 32 numbers from 0 to 31."""
    blocks = data.reshape(len(data), -1, 24 if kind.name == "Q5_1" else 22)
    lost = 32 * _ulp(_halves(blocks[..., :2])) + (_ulp(_halves(blocks[..., 2:4])) if kind.name == "Q5_1" else 0)
    steps = np.repeat(np.abs(_halves(blocks[..., :2])), 32, axis=1)
    near = steps + np.repeat(lost, 32, axis=1)
    return Part(gguf.quants.dequantize(data, kind), steps, steps > 0, near, near, rare=SEARCHED)


def _k(data: np.ndarray, kind: Any) -> Part:
    """Q4_K and Q5_K: scale and scale of the minima (f16), 8 scales and minima in 6 bits, 256 numbers from 0 on."""
    size, last = (144, 15) if kind.name == "Q4_K" else (176, 31)
    blocks = data.reshape(-1, size)
    scale, minimum = (_halves(blocks[:, at : at + 2]).reshape(-1, 1) for at in (0, 2))
    factors, lowest = gguf.quants.Q4_K.get_scale_min(blocks[:, 4:16])
    lost = np.broadcast_to(CLIPPED * last * _coarse(scale) + _coarse(minimum), factors.shape)
    return _nearest(data, kind, scale * factors, scale, (0, last), lost, minimum * lowest)


def _q6_k(data: np.ndarray, kind: Any) -> Part:
    """256 numbers from -32 to 31, 16 scales (int8), the scale of these (f16)."""
    blocks = data.reshape(-1, 210)
    scale = _halves(blocks[:, 208:]).reshape(-1, 1)
    factors = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    lost = np.broadcast_to(CLIPPED * 32 * _coarse(scale), factors.shape)
    return _nearest(data, kind, scale * factors, scale, (-32, 31), lost, np.zeros_like(factors))


def _nearest(
    data: np.ndarray, kind: Any, scales: np.ndarray, scale: np.ndarray, ends: tuple[int, int], lost: np.ndarray, minima: np.ndarray
) -> Part:
    """Numbers of super-blocks, each times a scale (S, B), less a minimum (S, B): the nearest ones, or one of the `ends`, beyond which a
    weight may be anywhere. `lost` (S, B): what a block may have held whose scale came to 0."""
    block, values = 256 // scales.shape[1], gguf.quants.dequantize(data, kind)
    steps, start, zero, finest = (
        np.repeat(array, block, axis=1).reshape(values.shape)
        for array in (scales, minima, lost, np.broadcast_to(np.abs(scale), scales.shape))
    )
    codes = (values + start) / np.where(steps == 0, 1, steps)
    near = np.where(steps == 0, zero, SLACK * np.abs(steps))
    first, last = ((codes < ends[0] + 0.5) & (steps != 0), (codes > ends[1] - 0.5) & (steps != 0))
    below, above = (np.where(np.where(steps > 0, *outward), np.inf, near) for outward in ((first, last), (last, first)))
    return Part(values, np.abs(steps), (steps != 0) & ~first & ~last, below, above, finest=finest)


def _coarse(unit: np.ndarray) -> np.ndarray:
    """What rounding a scale to whole units, and these to f16, may take away of it."""
    rounded: np.ndarray = np.abs(unit) / 2 + STEPS_OF_SCALES * _ulp(unit) / 2
    return rounded


def _halves(data: np.ndarray) -> np.ndarray:
    """The f16 numbers in bytes (…, 2), as fp32 (…)."""
    numbers: np.ndarray = np.ascontiguousarray(data).view(np.float16)[..., 0].astype(np.float32)
    return numbers


def _ulp(numbers: np.ndarray) -> np.ndarray:
    """The distance of f16 numbers to the next one."""
    distances: np.ndarray = np.spacing(np.abs(numbers).astype(np.float16)).astype(np.float32)
    return distances


_KINDS = {
    "F32": _Kind(_floats), "F16": _Kind(_floats), "BF16": _Kind(_floats),
    "Q8_0": _Kind(_q8_0, 32, 127), "Q5_0": _Kind(_q5, 32, 15), "Q5_1": _Kind(_q5, 32, 15),
    "Q4_K": _Kind(_k, 32, 7), "Q5_K": _Kind(_k, 32, 15), "Q6_K": _Kind(_q6_k, 16, 31),
}  # fmt: skip
"""Type, as the package gguf names it → what its numbers are."""
