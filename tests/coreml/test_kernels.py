"""Every operator that is evaluated gives what torch gives, for inputs of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.coreml.evaluation.kernels import KERNELS

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 1000)
UNARY: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs, "exp": torch.exp, "square": torch.square, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh,
    "sign": torch.sign, "ceil": torch.ceil, "floor": torch.floor, "round": torch.round, "identity": lambda x: x, "sigmoid": torch.sigmoid,
    "relu": torch.relu, "silu": torch.nn.functional.silu, "softplus": torch.nn.functional.softplus, "erf": torch.erf,
    "gelu": torch.nn.functional.gelu, "rsqrt": lambda x: torch.rsqrt(x.abs() + 1), "sqrt": lambda x: torch.sqrt(x.abs() + 1),
    "inverse": lambda x: torch.reciprocal(x.abs() + 1), "log": lambda x: torch.log(x.abs() + 1),
}  # fmt: skip
POSITIVE = ("rsqrt", "sqrt", "inverse", "log")
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum, "minimum": torch.minimum, "real_div": torch.div,
    "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le, "greater": torch.gt, "greater_equal": torch.ge,
    "pow": lambda x, y: torch.pow(x.abs() + 1, y), "floor_div": lambda x, y: torch.floor_divide(x, y.abs() + 1),
    "mod": lambda x, y: torch.remainder(x, y.abs() + 1),
}  # fmt: skip
LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_xor": torch.logical_xor,
}  # fmt: skip
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_mean": torch.mean, "reduce_sum": torch.sum, "reduce_max": torch.amax, "reduce_min": torch.amin,
    "reduce_sum_square": lambda x, dim, keepdim: torch.sum(x * x, dim, keepdim),
    "reduce_l2_norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim),
    "reduce_prod": lambda x, dim, keepdim: torch.exp(torch.log(x.abs()).sum(dim, keepdim)),
}  # fmt: skip
ALONE = {
    "logical_not", "cast", "select", "clip", "linear", "matmul", "softmax", "scaled_dot_product_attention", "layer_norm", "cumsum", "topk",
    "shape", "reshape", "transpose", "expand_dims", "squeeze", "concat", "stack", "split", "tile", "slice_by_index", "slice_by_size",
    "gather", "gather_along_axis", "gather_nd", "fill", "range_1d", "one_hot", "band_part",
}  # fmt: skip


def array(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def same(found: Any, wanted: torch.Tensor) -> None:
    assert np.shape(found) == tuple(wanted.shape)
    assert np.allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5), (found, wanted)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_every_operator_is_tried_here() -> None:
    assert set(KERNELS) == {*UNARY, *BINARY, *LOGICAL, *REDUCTIONS, *ALONE}


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS)
def test_of_one(name: str, shape: tuple[int, ...], seed: int) -> None:
    x = array(shape, seed) * 3
    with_one = {"x": np.abs(x) + 1, "epsilon": np.float32(0)} if name in POSITIVE else {"x": x}
    same(KERNELS[name](with_one), UNARY[name](torch.from_numpy(x)))


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS, dropped=st.integers(0, 3), ones=st.integers(0, 3))
def test_of_two_that_spread(name: str, shape: tuple[int, ...], seed: int, dropped: int, ones: int) -> None:
    x, y = array(shape, seed), array(tuple(1 if place == ones else size for place, size in enumerate(shape))[dropped:], seed + 1)
    if name in ("equal", "not_equal"):
        x, y = np.asarray(np.round(x)), np.asarray(np.round(y))
    left, right = (np.abs(x) + 1 if name == "pow" else x), (np.abs(y) + 1 if name in ("floor_div", "mod") else y)
    same(KERNELS[name]({"x": left, "y": right}), BINARY[name](torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("name", LOGICAL)
def test_of_truths(name: str) -> None:
    x, y = np.array([[True, False]]), np.array([[True], [False]])
    same(KERNELS[name]({"x": x, "y": y}), LOGICAL[name](torch.from_numpy(x), torch.from_numpy(y)))
    same(KERNELS["logical_not"]({"x": x}), ~torch.from_numpy(x))


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS, data=st.data(), kept=st.booleans())
def test_of_axes(name: str, shape: tuple[int, ...], seed: int, data: st.DataObject, kept: bool) -> None:
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
    x = array(shape, seed)
    found = KERNELS[name]({"x": np.abs(x) if name == "reduce_prod" else x, "axes": ints(*axes), "keep_dims": np.bool_(kept)})
    same(found, REDUCTIONS[name](torch.from_numpy(x), dim=axes, keepdim=kept))


def test_whole_numbers_are_divided_towards_zero() -> None:
    assert KERNELS["real_div"]({"x": ints(7, -7, 6), "y": ints(2, 2, 3)}).tolist() == [3, -3, 2]


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, rows=st.integers(1, 5), biased=st.booleans())
def test_products(seed: int, rows: int, biased: bool) -> None:
    x, weight, bias = array((2, rows, 6), seed), array((4, 6), seed + 1), array((4,), seed + 2)
    given_ = {"x": x, "weight": weight, **({"bias": bias} if biased else {})}
    same(KERNELS["linear"](given_), torch.nn.functional.linear(*map(torch.from_numpy, (x, weight, *([bias] if biased else [])))))
    left, right = torch.from_numpy(x), torch.from_numpy(array((1, 6, 3), seed))
    for turned in range(4):
        a, b = (left.mT if turned & 1 else left), (right.mT if turned & 2 else right)
        found = KERNELS["matmul"]({
            "x": a.numpy(), "y": b.numpy(), "transpose_x": np.bool_(turned & 1), "transpose_y": np.bool_(turned & 2)
        })  # fmt: skip
        same(found, left @ right)


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS, data=st.data())
def test_softmax_and_norms(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    x = array(shape, seed) * 50
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    same(KERNELS["softmax"]({"x": x, "axis": np.int32(axis)}), torch.softmax(torch.from_numpy(x), axis))
    gamma, beta = array(shape[-1:], seed + 1), array(shape[-1:], seed + 2)
    wanted = torch.nn.functional.layer_norm(*map(torch.from_numpy, [x]), shape[-1:], *map(torch.from_numpy, (gamma, beta)), 1e-3)
    same(KERNELS["layer_norm"]({"x": x, "axes": ints(-1), "gamma": gamma, "beta": beta, "epsilon": np.float32(1e-3)}), wanted)


@settings(max_examples=10, deadline=None)
@given(seed=SEEDS, tokens=st.integers(1, 4), total=st.integers(1, 6))
def test_attention(seed: int, tokens: int, total: int) -> None:
    query, key, value = array((1, 2, tokens, 4), seed), array((1, 2, total, 4), seed + 1), array((1, 2, total, 4), seed + 2)
    mask = np.random.default_rng(seed).integers(0, 2, (1, 1, tokens, total)).astype(bool)
    mask[..., 0] = True
    wanted = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (query, key, value)), attn_mask=torch.from_numpy(mask))
    attend = KERNELS["scaled_dot_product_attention"]
    same(attend({"query": query, "key": key, "value": value, "attn_mask": mask}), wanted)
    added = np.where(mask, 0, -1e9).astype(np.float32)
    same(attend({"query": query, "key": key, "value": value, "attn_mask": added}), wanted)


@pytest.mark.parametrize("mode", ["EXACT", "TANH_APPROXIMATION", "SIGMOID_APPROXIMATION"])
def test_gelu_in_each_of_its_ways(mode: str) -> None:
    x = torch.linspace(-6, 6, 97)
    exact = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}
    wanted = torch.nn.functional.gelu(x, approximate=exact[mode]) if mode in exact else x * torch.sigmoid(1.702 * x)
    same(KERNELS["gelu"]({"x": x.numpy(), "mode": mode}), wanted)


def test_casts_go_towards_zero_and_clips_have_bounds() -> None:
    x = np.array([-1.7, 0.0, 2.9], np.float32)
    assert KERNELS["cast"]({"x": x, "dtype": "int32"}).tolist() == [-1, 0, 2]
    assert KERNELS["cast"]({"x": x, "dtype": "bool"}).tolist() == [True, False, True]
    assert KERNELS["cast"]({"x": ints(3), "dtype": "fp16"}).dtype == np.float32
    assert KERNELS["clip"]({"x": x, "alpha": np.float32(-1), "beta": np.float32(1)}).tolist() == [-1.0, 0.0, 1.0]


@settings(max_examples=40, deadline=None)
@given(shape=SHAPES, seed=SEEDS, data=st.data())
def test_slices(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    x, places = array(shape, seed), list[Any]()
    given_: dict[str, list[Any]] = {name: [] for name in ("begin", "end", "stride", "begin_mask", "end_mask", "squeeze_mask")}
    for size in shape:
        begin, end = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
        squeezed, from_start, to_end = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.booleans())
        step, below = data.draw(st.integers(1, 2)), data.draw(st.booleans())
        begin = begin - size if below else begin
        for name, value in zip(given_, (begin, end, step, from_start, to_end, squeezed), strict=True):
            given_[name].append(value)
        places.append(begin if squeezed else slice(None if from_start else begin, None if to_end else end, step))
    arrays = {name: np.array(values, bool if "mask" in name else np.int32) for name, values in given_.items()}
    found = KERNELS["slice_by_index"]({"x": x, **arrays})
    assert np.array_equal(found, x[tuple(places)])
    sizes = [data.draw(st.integers(1, size)) for size in shape]
    starts = [data.draw(st.integers(0, size - count)) for size, count in zip(shape, sizes, strict=True)]
    wanted = x[tuple(slice(start, start + count) for start, count in zip(starts, sizes, strict=True))]
    assert np.array_equal(KERNELS["slice_by_size"]({"x": x, "begin": ints(*starts), "size": ints(*sizes)}), wanted)


def test_a_slice_may_go_backwards_to_the_first_place() -> None:
    x = np.arange(5, dtype=np.float32)
    found = KERNELS["slice_by_index"]({"x": x, "begin": ints(3), "end": ints(-6), "stride": ints(-1)})
    assert found.tolist() == [3, 2, 1, 0]


@settings(max_examples=20, deadline=None)
@given(shape=SHAPES, seed=SEEDS, data=st.data())
def test_places_and_shapes(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    x = array(shape, seed)
    tensor, axis = torch.from_numpy(x), data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    same(KERNELS["transpose"]({"x": x, "perm": ints(*order)}), tensor.permute(*order))
    same(KERNELS["expand_dims"]({"x": x, "axes": ints(axis)}), tensor.unsqueeze(axis))
    same(KERNELS["squeeze"]({"x": x[None], "axes": ints(0)}), tensor)
    same(KERNELS["tile"]({"x": x, "reps": ints(*[2] * len(shape))}), tensor.repeat(*[2] * len(shape)))
    same(KERNELS["concat"]({"values": [x, x], "axis": np.int32(axis)}), torch.cat([tensor, tensor], axis))
    same(KERNELS["stack"]({"values": [x, x], "axis": np.int32(axis)}), torch.stack([tensor, tensor], axis))
    assert KERNELS["shape"]({"x": x}).tolist() == list(shape)
    same(KERNELS["cumsum"]({"x": x, "axis": np.int32(axis)}), tensor.cumsum(axis))
    both = KERNELS["split"]({"x": np.concatenate([x, x], axis), "num_splits": np.int32(2), "axis": np.int32(axis)})
    same(both[1], tensor)
    indices = np.random.default_rng(seed).integers(0, shape[axis], (3,)).astype(np.int32)
    same(KERNELS["gather"]({"x": x, "indices": indices, "axis": np.int32(axis)}), tensor.index_select(axis, torch.from_numpy(indices)))
    along = np.random.default_rng(seed).integers(0, shape[axis], shape).astype(np.int32)
    wanted = torch.gather(tensor, axis, torch.from_numpy(along).long())
    same(KERNELS["gather_along_axis"]({"x": x, "indices": along, "axis": np.int32(axis)}), wanted)
    count = data.draw(st.integers(1, shape[axis]))
    numbers, chosen = KERNELS["topk"]({"x": x, "k": np.int32(count), "axis": np.int32(axis)})
    same(numbers, torch.topk(tensor, count, axis).values)
    same(np.take_along_axis(x, chosen, axis), torch.topk(tensor, count, axis).values)


def test_the_rest_of_the_places() -> None:
    x = array((2, 3, 4), 0)
    tensor = torch.from_numpy(x)
    gather = KERNELS["gather"]
    rows = np.array([[2, 0], [1, 1]], np.int32)
    wanted = torch.stack([tensor[row][torch.from_numpy(rows[row])] for row in range(2)])
    same(gather({"x": x, "indices": rows, "axis": np.int32(1), "batch_dims": np.int32(1)}), wanted)
    places = np.array([[0, 2], [1, 1]], np.int32)
    same(KERNELS["gather_nd"]({"x": x, "indices": places}), torch.stack([tensor[0, 2], tensor[1, 1]]))
    same(
        KERNELS["gather_nd"]({"x": x, "indices": ints(2, 0)[:, None], "batch_dims": np.int32(1)}), torch.stack([tensor[0, 2], tensor[1, 0]])
    )
    assert KERNELS["fill"]({"shape": ints(2, 3), "value": np.float32(7)}).tolist() == [[7.0] * 3] * 2
    assert KERNELS["range_1d"]({"start": np.int32(1), "end": np.int32(6), "step": np.int32(2)}).tolist() == [1, 3, 5]
    assert KERNELS["one_hot"]({"indices": ints(1, 0), "one_hot_vector_size": np.int32(3)}).tolist() == [[0, 1, 0], [1, 0, 0]]
    same(KERNELS["band_part"]({"x": x, "lower": np.int32(-1), "upper": np.int32(0)}), torch.tril(tensor))
    same(KERNELS["band_part"]({"x": x, "lower": np.int32(0), "upper": np.int32(1)}), torch.triu(tensor) - torch.triu(tensor, 2))
    same(KERNELS["split"]({"x": x, "split_sizes": ints(1, 3), "axis": np.int32(2)})[1], tensor[..., 1:])
    assert KERNELS["concat"]({"values": [ints(1, 2), ints(3, 4)], "axis": np.int32(0), "interleave": np.bool_(True)}).tolist() == [
        1,
        3,
        2,
        4,
    ]
    same(KERNELS["select"]({"cond": x > 0, "a": x, "b": np.float32(-1)}), torch.where(tensor > 0, tensor, -1.0))
    back = {"x": ints(1, 2, 3), "axis": np.int32(0)}
    assert KERNELS["cumsum"]({**back, "reverse": np.bool_(True)}).tolist() == [6, 5, 3]
    assert KERNELS["cumsum"]({**back, "exclusive": np.bool_(True)}).tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("before", "shape", "after"),
    [
        ((2, 6), (3, -1), (3, 4)), ((2, 50), (1, 0, -1, 0), (1, 1, 2, 50)), ((2, 3, 4), (0, -1), (3, 8)), ((2, 3), (0, 0), (2, 3)),
        ((4,), (2, 2), (2, 2)),
    ],
)  # fmt: skip
def test_a_shape_may_take_sizes_from_the_input(before: tuple[int, ...], shape: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert KERNELS["reshape"]({"x": np.zeros(before), "shape": ints(*shape)}).shape == after


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_without_a_place_is_an_error(index: int) -> None:
    for name in ("gather", "gather_along_axis"):
        with pytest.raises(IndexError, match="there are 3 places"):
            KERNELS[name]({"x": np.zeros(3, np.float32), "indices": ints(index), "axis": np.int32(0)})
