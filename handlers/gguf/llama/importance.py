"""How much each column of a matrix counts: the mean square of what it is multiplied with, over texts, for llama.cpp's quantizer.

llama.cpp computes the texts itself and lets a function look at each product (`cb_eval`). A product's operands are read from ggml's own
structure, whose layout belongs to the version of the toolchain: `struct ggml_tensor` in ggml/include/ggml.h. What is gathered is what
llama.cpp's tool imatrix gathers. Runs inside the toolchain `gguf`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from handlers.gguf.llama import library

LONGEST = 512
"""Tokens of a text that are looked at."""
_F32, _I32 = 0, 26
"""Of ggml's `enum ggml_type`."""
_DIMENSIONS, _SOURCES = 4, 10


class _Tensor(ctypes.Structure):
    pass


_Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * _DIMENSIONS), ("nb", ctypes.c_size_t * _DIMENSIONS),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32), ("src", ctypes.POINTER(_Tensor) * _SOURCES),
    ("view_src", ctypes.POINTER(_Tensor)), ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
    ("extra", ctypes.c_void_p), ("padding", ctypes.c_char * 8),
]  # fmt: skip


class Gathered:
    """Sums over what was computed: tensor → sums of squares (experts, columns) and how many rows they are of (experts)."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, np.ndarray] = {}
        self.failed: BaseException | None = None

    def means(self) -> dict[str, np.ndarray]:
        """Mean squares (experts × columns), fp32; ones for an expert that no text has reached."""
        means = {}
        for name, sums in self.sums.items():
            counts = self.counts[name][:, None]
            means[name] = np.where(counts > 0, sums / np.maximum(counts, 1), 1.0).astype(np.float32).reshape(-1)
        return means

    def add(self, name: str, experts: int, chosen: np.ndarray, rows: np.ndarray) -> None:
        """Rows (n, columns) that went to the expert of the same place in `chosen` (n,)."""
        if name not in self.sums:
            self.sums[name] = np.zeros((experts, rows.shape[1]))
            self.counts[name] = np.zeros(experts)
        np.add.at(self.sums[name], chosen, rows.astype(np.float64) ** 2)
        np.add.at(self.counts[name], chosen, 1)


def measure(path: Path, texts: Sequence[Sequence[int]], threads: int, said: Callable[[float], None]) -> dict[str, np.ndarray]:
    """Tensor → mean squares, of the file `path`, over token ids. Raises library.Refused."""
    native, gathered = library.llama(), Gathered()
    name_of = _operations()

    def looked(tensor: Any, ask: bool, _data: object) -> bool:
        try:
            node = ctypes.cast(tensor, ctypes.POINTER(_Tensor)).contents
            kind = name_of(node.op)
            if kind not in (b"MUL_MAT", b"MUL_MAT_ID"):
                return not ask
            weights = node.src[0].contents
            name = weights.name.decode(errors="replace")
            if not name.endswith(".weight") or node.src[1].contents.type != _F32:
                return not ask
            if not ask:
                _gather(gathered, name, weights, node, of_experts=kind == b"MUL_MAT_ID")
        except BaseException as error:  # nothing may be raised through llama.cpp
            gathered.failed = error
            return not ask
        return True

    observe = native.ggml_backend_sched_eval_callback(looked)
    with library.Model(path) as model:
        context = library.Context(model, LONGEST, 1, threads, observe)
        try:
            for number, text in enumerate(texts):
                said(number / len(texts))
                context.forget()
                context.run([(token, place, 0) for place, token in enumerate(text[:LONGEST])])
                if gathered.failed is not None:
                    raise gathered.failed
        finally:
            context.close()
    return gathered.means()


def _gather(gathered: Gathered, name: str, weights: _Tensor, node: _Tensor, *, of_experts: bool) -> None:
    inputs = _array(node.src[1].contents, np.float32)  # (d3, d2, d1, columns)
    if not of_experts:
        rows = inputs.reshape(-1, inputs.shape[-1])
        gathered.add(name, 1, np.zeros(len(rows), np.int64), rows)
        return
    ids = _array(node.src[2].contents, np.int32)[0, 0]  # (tokens, used)
    tokens, used = ids.shape
    taken = inputs[0][:, np.arange(used) % inputs.shape[2]]  # (tokens, used, columns): one row a token where all experts get the same
    gathered.add(name, int(weights.ne[2]), ids.reshape(-1), taken.reshape(tokens * used, -1))


def _array(tensor: _Tensor, dtype: type[np.generic]) -> np.ndarray:
    """What a tensor of the CPU holds, its last axis first."""
    shape, strides = tuple(reversed(tensor.ne)), tuple(reversed(tensor.nb))
    size = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True)) + np.dtype(dtype).itemsize
    memory = (ctypes.c_char * size).from_address(tensor.data)
    return np.ndarray(shape, dtype, memory, strides=strides)


def _operations() -> Callable[[int], bytes]:
    """ggml's name of an operation."""
    library_of = library.ggml()
    library_of.ggml_op_name.argtypes, library_of.ggml_op_name.restype = [ctypes.c_int], ctypes.c_char_p
    names: dict[int, bytes] = {}

    def name(number: int) -> bytes:
        if number not in names:
            names[number] = library_of.ggml_op_name(number)
        return names[number]

    return name
