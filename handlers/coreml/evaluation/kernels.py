"""What each operator of an ML program computes, with numpy: a table of functions of the operator's inputs by name.

Called by the evaluator alone, which rounds to half precision where the program says so. Numbers with fractions come as fp32, whatever the
program stores them in; all else comes in its own type. The meaning of each operator is that of coremltools' documentation of MIL operators
for iOS 18.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Inputs = Mapping[str, Any]
"""Name of an input → array, or a list of arrays for `values`; inputs that are left out are missing."""
Kernel = Callable[[Inputs], Any]

KERNELS: dict[str, Kernel] = {}
MOVES = frozenset({
    "band_part", "concat", "expand_dims", "gather", "gather_along_axis", "gather_nd", "identity", "read_state", "reshape", "select",
    "slice_by_index", "slice_by_size", "split", "squeeze", "stack", "tile", "transpose",
})  # fmt: skip
"""Operators that only move numbers, so that nothing is to be rounded."""
_CASTS: dict[str, type[np.generic]] = {
    "fp16": np.float32, "fp32": np.float32, "int8": np.int8, "int16": np.int16, "int32": np.int32, "uint8": np.uint8,
    "uint16": np.uint16, "bool": np.bool_,
}  # fmt: skip


def _register(*names: str) -> Callable[[Kernel], Kernel]:
    def put(kernel: Kernel) -> Kernel:
        KERNELS.update(dict.fromkeys(names, kernel))
        return kernel

    return put


def _binary(name: str, function: Callable[[Any, Any], Any]) -> None:
    KERNELS[name] = lambda inputs: function(inputs["x"], inputs["y"])


def _unary(name: str, function: Callable[[Any], Any]) -> None:
    KERNELS[name] = lambda inputs: function(inputs["x"])


for _name, _function in {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "pow": np.power,
    "floor_div": np.floor_divide, "mod": np.mod, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor,
}.items():  # fmt: skip
    _binary(_name, _function)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)), np.float32)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs, "exp": np.exp, "sqrt": np.sqrt, "square": np.square, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sign": np.sign,
    "ceil": np.ceil, "floor": np.floor, "round": np.rint, "logical_not": np.logical_not, "identity": lambda x: x, "sigmoid": sigmoid,
    "relu": lambda x: np.maximum(x, 0), "silu": lambda x: x * sigmoid(x), "softplus": lambda x: np.logaddexp(0, x),
    "erf": lambda x: torch.erf(torch.from_numpy(np.ascontiguousarray(x))).numpy(),
}  # fmt: skip
for _name, _plain in _UNARY.items():
    _unary(_name, _plain)


@_register("real_div")
def _real_div(inputs: Inputs) -> Any:
    x, y = inputs["x"], inputs["y"]
    return np.true_divide(x, y) if np.issubdtype(np.result_type(x), np.floating) else np.trunc(np.true_divide(x, y)).astype(x.dtype)


@_register("gelu")
def _gelu(inputs: Inputs) -> Any:
    x, mode = inputs["x"], str(inputs.get("mode", "EXACT"))
    if mode == "EXACT":
        return 0.5 * x * (1.0 + KERNELS["erf"]({"x": x / math.sqrt(2.0)}))
    if mode == "TANH_APPROXIMATION":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return x * sigmoid(1.702 * x)


@_register("cast")
def _cast(inputs: Inputs) -> Any:
    x, kind = np.asarray(inputs["x"]), _CASTS[str(inputs["dtype"])]
    return np.trunc(x).astype(kind) if np.issubdtype(kind, np.integer) and np.issubdtype(x.dtype, np.floating) else x.astype(kind)


# Sums and products


def _axes(inputs: Inputs) -> tuple[int, ...] | None:
    return tuple(int(axis) for axis in inputs["axes"]) if "axes" in inputs else None


KERNELS |= {
    "rsqrt": lambda inputs: 1.0 / np.sqrt(inputs["x"] + inputs.get("epsilon", np.float32(1e-12))),
    "inverse": lambda inputs: 1.0 / (inputs["x"] + inputs.get("epsilon", np.float32(1e-4))),
    "log": lambda inputs: np.log(inputs["x"] + inputs.get("epsilon", np.float32(1e-45))),
    "clip": lambda inputs: np.clip(inputs["x"], inputs["alpha"], inputs["beta"]),
    "select": lambda inputs: np.where(inputs["cond"], inputs["a"], inputs["b"]),
    "shape": lambda inputs: np.array(np.shape(inputs["x"]), np.int32),
    "transpose": lambda inputs: np.transpose(inputs["x"], [int(place) for place in inputs["perm"]]),
    "expand_dims": lambda inputs: np.expand_dims(inputs["x"], _axes(inputs) or ()),
    "squeeze": lambda inputs: np.squeeze(inputs["x"], _axes(inputs)),
    "stack": lambda inputs: np.stack(list(inputs["values"]), axis=int(inputs["axis"])),
    "tile": lambda inputs: np.tile(inputs["x"], [int(count) for count in inputs["reps"]]),
    "fill": lambda inputs: np.full([int(size) for size in inputs["shape"]], inputs.get("value", np.float32(0))),
}


def _reduction(name: str, function: Callable[..., Any]) -> None:
    KERNELS[name] = lambda inputs: function(inputs["x"], axis=_axes(inputs), keepdims=bool(inputs.get("keep_dims", False)))


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_mean": np.mean, "reduce_sum": np.sum, "reduce_max": np.max, "reduce_min": np.min, "reduce_prod": np.prod,
    "reduce_sum_square": lambda x, **how: np.sum(np.square(x), **how),
    "reduce_l2_norm": lambda x, **how: np.sqrt(np.sum(np.square(x), **how)),
}  # fmt: skip
for _name, _reduce in _REDUCTIONS.items():
    _reduction(_name, _reduce)


@_register("linear")
def _linear(inputs: Inputs) -> Any:
    product = inputs["x"] @ inputs["weight"].T
    return product + inputs["bias"] if "bias" in inputs else product


@_register("matmul")
def _matmul(inputs: Inputs) -> Any:
    x, y = inputs["x"], inputs["y"]
    x = np.swapaxes(x, -1, -2) if inputs.get("transpose_x", False) else x
    y = np.swapaxes(y, -1, -2) if inputs.get("transpose_y", False) else y
    return x @ y


@_register("softmax")
def _softmax(inputs: Inputs) -> Any:
    x, axis = inputs["x"], int(inputs.get("axis", -1))
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


@_register("scaled_dot_product_attention")
def _attention(inputs: Inputs) -> Any:
    query = inputs["query"]
    scores = query @ np.swapaxes(inputs["key"], -1, -2) / math.sqrt(query.shape[-1])
    mask = inputs.get("attn_mask")
    if mask is not None:
        scores = np.where(mask, scores, np.float32(-np.inf)) if mask.dtype == np.bool_ else scores + mask
    return _softmax({"x": scores}) @ inputs["value"]


@_register("layer_norm")
def _layer_norm(inputs: Inputs) -> Any:
    x, axes = inputs["x"], tuple(int(axis) for axis in inputs["axes"])
    centered = x - x.mean(axis=axes, keepdims=True)
    scaled = centered / np.sqrt(np.square(centered).mean(axis=axes, keepdims=True) + inputs.get("epsilon", np.float32(1e-5)))
    shape = tuple(size if place in {axis % x.ndim for axis in axes} else 1 for place, size in enumerate(x.shape))
    scaled = scaled * inputs["gamma"].reshape(shape) if "gamma" in inputs else scaled
    return scaled + inputs["beta"].reshape(shape) if "beta" in inputs else scaled


@_register("cumsum")
def _cumsum(inputs: Inputs) -> Any:
    x, axis = inputs["x"], int(inputs.get("axis", 0))
    backwards = bool(inputs.get("reverse", False))
    sums = np.cumsum(np.flip(x, axis) if backwards else x, axis=axis, dtype=x.dtype)
    sums = sums - (np.flip(x, axis) if backwards else x) if inputs.get("exclusive", False) else sums
    return np.flip(sums, axis) if backwards else sums


@_register("topk")
def _topk(inputs: Inputs) -> Any:
    x, axis = inputs["x"], int(inputs.get("axis", -1))
    count, ascending = int(inputs.get("k", 1)), bool(inputs.get("ascending", False))
    order = np.argsort(x if ascending else -x, axis=axis, kind="stable")
    places = np.take(order, np.arange(count), axis=axis)
    return [np.take_along_axis(x, places, axis=axis), places.astype(np.int32)][: 2 if inputs.get("return_indices", True) else 1]


# Places


@_register("reshape")
def _reshape(inputs: Inputs) -> Any:
    """A size of 0 stands for that of the input at the same place, counted from the last one; a size of -1 for what is left."""
    x, wanted = inputs["x"], [int(size) for size in inputs["shape"]]
    before = [1] * max(0, len(wanted) - x.ndim) + list(x.shape)
    before = before[len(before) - len(wanted) :]
    return x.reshape([before[place] if size == 0 else size for place, size in enumerate(wanted)])


@_register("concat")
def _concat(inputs: Inputs) -> Any:
    values, axis = list(inputs["values"]), int(inputs["axis"])
    if not inputs.get("interleave", False):
        return np.concatenate([np.atleast_1d(value) for value in values], axis=axis)
    together = np.stack(values, axis=axis % values[0].ndim + 1)
    shape = list(values[0].shape)
    shape[axis] *= len(values)
    return together.reshape(shape)


@_register("split")
def _split(inputs: Inputs) -> Any:
    x, axis = inputs["x"], int(inputs["axis"])
    if "split_sizes" in inputs:
        return np.split(x, np.cumsum([int(size) for size in inputs["split_sizes"]])[:-1], axis=axis)
    return np.split(x, int(inputs["num_splits"]), axis=axis)


@_register("slice_by_index")
def _slice_by_index(inputs: Inputs) -> Any:
    x = inputs["x"]

    def given(name: str, default: Any) -> Sequence[Any]:
        return inputs[name].tolist() if name in inputs else [default] * x.ndim

    begin, end, step = (given(name, default) for name, default in (("begin", 0), ("end", 0), ("stride", 1)))
    from_start, to_end, single = (given(name, False) for name in ("begin_mask", "end_mask", "squeeze_mask"))
    places: list[Any] = []
    for axis, size in enumerate(x.shape):
        if single[axis]:
            places.append(int(begin[axis]))
            continue
        first = None if from_start[axis] else _place(begin[axis], size)
        last = None if to_end[axis] else _place(end[axis], size)
        # Counting down to the first one: it has no place before it that could be named.
        places.append(slice(first, None if step[axis] < 0 and last is not None and last < 0 else last, int(step[axis])))
    return x[tuple(places)]


def _place(index: int, size: int) -> int:
    return int(index) + size if index < 0 else int(index)


@_register("slice_by_size")
def _slice_by_size(inputs: Inputs) -> Any:
    x, places = inputs["x"], []
    for size, start, count in zip(x.shape, inputs["begin"].tolist(), inputs["size"].tolist(), strict=True):
        first = _place(start, size)
        places.append(slice(first, size if count == -1 else first + count))
    return x[tuple(places)]


def _within(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices as they are. Since iOS 17 one that is not a place has no meaning, not even a negative one: IndexError."""
    indices = np.asarray(indices).astype(np.int64)
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        raise IndexError(f"an index goes from {indices.min()} to {indices.max()} where there are {size} places")
    return indices


@_register("gather")
def _gather(inputs: Inputs) -> Any:
    x, axis, batched = np.asarray(inputs["x"]), int(inputs.get("axis", 0)), int(inputs.get("batch_dims", 0))
    axis %= x.ndim
    indices = _within(inputs["indices"], x.shape[axis])
    if batched == 0:
        return np.take(x, indices, axis=axis)
    flat = x.reshape(-1, *x.shape[batched:])
    rows = indices.reshape(-1, *indices.shape[batched:])
    taken = np.stack([np.take(table, row, axis=axis - batched) for table, row in zip(flat, rows, strict=True)])
    return taken.reshape(*x.shape[:batched], *taken.shape[1:])


@_register("gather_along_axis")
def _gather_along_axis(inputs: Inputs) -> Any:
    x, axis = inputs["x"], int(inputs.get("axis", 0))
    return np.take_along_axis(x, _within(inputs["indices"], x.shape[axis]), axis=axis)


@_register("gather_nd")
def _gather_nd(inputs: Inputs) -> Any:
    x, indices, batched = inputs["x"], np.asarray(inputs["indices"]).astype(np.int64), int(inputs.get("batch_dims", 0))
    for place in range(indices.shape[-1]):
        _within(indices[..., place], x.shape[batched + place])
    if batched == 0:
        return x[_each(indices)]
    flat, rows = x.reshape(-1, *x.shape[batched:]), indices.reshape(-1, *indices.shape[batched:])
    taken = np.stack([table[_each(row)] for table, row in zip(flat, rows, strict=True)])
    return taken.reshape(*x.shape[:batched], *taken.shape[1:])


def _each(indices: np.ndarray) -> tuple[np.ndarray, ...]:
    """Places along each axis, of those that lie together along the last one."""
    return tuple(indices[..., axis] for axis in range(indices.shape[-1]))


@_register("range_1d")
def _range(inputs: Inputs) -> Any:
    kind = np.result_type(inputs["start"], inputs["end"], inputs["step"])
    return np.arange(inputs["start"], inputs["end"], inputs["step"]).astype(kind)


@_register("one_hot")
def _one_hot(inputs: Inputs) -> Any:
    size, axis = int(inputs["one_hot_vector_size"]), int(inputs.get("axis", -1))
    hit = np.expand_dims(inputs["indices"], -1) == np.arange(size)
    hot: np.ndarray = np.asarray(np.where(hit, inputs.get("on_value", np.int32(1)), inputs.get("off_value", np.int32(0))))
    return np.moveaxis(hot, -1, axis)


@_register("band_part")
def _band_part(inputs: Inputs) -> Any:
    x, lower, upper = inputs["x"], int(inputs.get("lower", -1)), int(inputs.get("upper", -1))
    distance = np.arange(x.shape[-2])[:, None] - np.arange(x.shape[-1])[None]
    kept = ((lower < 0) | (distance <= lower)) & ((upper < 0) | (-distance <= upper))
    return np.where(kept, x, np.zeros((), x.dtype))
