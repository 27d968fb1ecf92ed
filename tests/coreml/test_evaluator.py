"""The evaluator of ML programs without any program of Core ML Tools: weights as they lie on disk, rounding, states, contradictions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.coreml.compressing import tables
from handlers.coreml.evaluation.blobs import BITS, Blob, Unreadable, unpacked
from handlers.coreml.evaluation.decompression import blockwise, looked_up
from handlers.coreml.evaluation.evaluator import Evaluator, UnknownOperator, Unsound
from handlers.coreml.evaluation.package import Operator, Program, Type

HALF = Type("float16", (1, 2))


def stored(path: Path, array: np.ndarray) -> Path:
    """A weight file with one array at 64."""
    header = np.zeros(16, np.uint32)
    header[:2] = 1, 2
    metadata = np.zeros(8, np.uint64)
    metadata[0], metadata[1], metadata[2] = 0xDEADBEEF | (1 << 32), array.nbytes, 128
    path.write_bytes(header.tobytes() + metadata.tobytes() + array.tobytes())
    return path


def program(*operators: Operator, outputs: tuple[str, ...] = ("y",), states: dict[str, Type] | None = None) -> Program:
    """A program of one input x (1, 2) in half precision."""
    shapes = {"x": ((1, 2),)}
    return Program(Path("none"), {"x": HALF}, states or {}, outputs, operators, shapes, 9)


def step(kind: str, output: str = "y", type_: Type = HALF, **inputs: str | np.ndarray) -> Operator:
    return Operator(kind, {name: (bound,) for name, bound in inputs.items()}, ((output, type_),))


# Weights as they lie on disk


def test_an_array_of_the_weight_file_is_read_where_it_lies(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float16).reshape(3, 4)
    path = stored(tmp_path / "weight.bin", array)
    assert np.array_equal(Blob(path, 64, "float16", (3, 4)).read(), array)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("version", "not of version 2"), ("mark", "no array at 64"), ("size", "24 bytes where 48 belong"), ("end", "cut short"),
        ("gone", "can't be read"),
    ],
)  # fmt: skip
def test_a_damaged_weight_file_is_one_sentence(damage: str, words: str, tmp_path: Path) -> None:
    path = stored(tmp_path / "weight.bin", np.arange(12, dtype=np.float16))
    data, shape = bytearray(path.read_bytes()), (12,)
    if damage == "version":
        data[4] = 1
    elif damage == "mark":
        data[64] = 0
    elif damage == "size":
        shape = (24,)
    elif damage == "end":
        del data[-2:]
    path.write_bytes(data)
    if damage == "gone":
        path.unlink()
    with pytest.raises(Unreadable, match=words):
        Blob(path, 64, "float16", shape).read()


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(sorted(BITS)), data=st.data())
def test_numbers_without_whole_bytes_are_packed_from_the_lowest_bit_on(kind: str, data: st.DataObject) -> None:
    width = BITS[kind]
    lowest, highest = (-8, 7) if kind == "int4" else (0, 2**width - 1)
    numbers = data.draw(st.lists(st.integers(lowest, highest), min_size=1, max_size=20))
    whole = sum((number & (2**width - 1)) << (place * width) for place, number in enumerate(numbers))
    packed = np.frombuffer(whole.to_bytes(math.ceil(len(numbers) * width / 8), "little"), np.uint8)
    assert unpacked(packed, kind, (len(numbers),)).tolist() == numbers


@settings(max_examples=30, deadline=None)
@given(
    blocks=st.tuples(st.integers(1, 3), st.integers(1, 3)), inside=st.tuples(st.integers(1, 3), st.integers(1, 4)), seed=st.integers(0, 99)
)
def test_every_block_has_its_own_scale_and_its_own_table(blocks: tuple[int, int], inside: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    shape = (blocks[0] * inside[0], blocks[1] * inside[1])
    data, scale = random.integers(-8, 8, shape).astype(np.int8), random.normal(size=blocks).astype(np.float16)
    offset, lut = random.integers(-8, 8, blocks).astype(np.int8), random.normal(size=(*blocks, 16, 1)).astype(np.float16)
    indices = random.integers(0, 16, shape).astype(np.uint8)
    numbers = blockwise({"data": data, "scale": scale, "offset": offset})
    entries = looked_up({"indices": indices, "lut": lut})
    for row in range(shape[0]):
        for column in range(shape[1]):
            block = (row // inside[0], column // inside[1])
            assert numbers[row, column] == np.float32(int(data[row, column]) - int(offset[block])) * np.float32(scale[block])
            assert entries[row, column] == np.float32(lut[(*block, indices[row, column], 0)])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), rows=st.integers(1, 4))
def test_a_table_of_sixteen_numbers_loses_less_than_even_steps_do(seed: int, rows: int) -> None:
    values = np.random.default_rng(seed).normal(size=(rows, 64)).astype(np.float16)
    table, places = tables.of(values)
    flat = values.reshape(-1).astype(np.float32)
    nearest = np.abs(flat[:, None] - table.astype(np.float32)[None]).min(1)
    assert table.shape == (16,) and table.dtype == np.float16 and places.dtype == np.uint8
    assert np.array_equal(np.abs(flat - table[places].astype(np.float32)), nearest), "each number has its nearest entry"
    even = np.linspace(flat.min(), flat.max(), 16)
    assert np.square(nearest).mean() < np.square(np.abs(flat[:, None] - even[None]).min(1)).mean()


def test_a_table_for_fewer_numbers_than_it_has_entries_holds_all_of_them() -> None:
    values = np.array([[0.0, 1.0], [0.0, -3.0]], np.float16)
    table, places = tables.of(values)
    assert np.allclose(table[places].reshape(2, 2), values)


# Programs


def test_results_are_rounded_where_the_program_says_so_and_sums_are_not() -> None:
    x = np.array([[1.0, 3.0]], np.float32)
    small = np.float32(1e-4)
    found, _ = Evaluator(program(step("add", x="x", y=small))).run({}, {"x": x})
    assert found["y"].tolist() == [[1.0, 3.0]], "half precision knows no number between"
    exact, _ = Evaluator(program(step("add", type_=Type("float32", (1, 2)), x="x", y=small))).run({}, {"x": x})
    assert np.allclose(exact["y"], x + small, atol=1e-7)
    large, _ = Evaluator(program(step("mul", x="x", y=np.float32(60000)))).run({}, {"x": x})
    assert large["y"].tolist() == [[60000.0, np.inf]], "an overflow is an infinity, as it is on a device"


def test_an_operator_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownOperator, match=r"an operator lstm \(y\), which is not evaluated here"):
        Evaluator(program(step("lstm", x="x")))
    with pytest.raises(UnknownOperator, match=r"weights as constexpr_sparse_to_dense \(w\)"):
        Evaluator(program(step("constexpr_sparse_to_dense", "w"), step("add", x="x", y="w")))


def test_what_comes_out_must_be_what_the_program_declares() -> None:
    x = np.ones((1, 2), np.float32)
    cases = {
        r"select \(y\) has the shape \(1, 2\), and is declared as \(\)": step("select", type_=Type("float16", ()), cond="x", a="x", b="x"),
        r"add \(y\) has the shape \(1, 2\), and is declared as \(1, 3\)": step("add", type_=Type("float16", (1, 3)), x="x", y="x"),
        r"equal \(y\) is bool, and is declared as float16": step("equal", x="x", y="x"),
        r"shape \(y\) is int32, and is declared as float32": step("shape", type_=Type("float32", (2,)), x="x"),
        r"matmul \(y\) can't be computed": step("matmul", x="x", y="x"),
    }
    for words, operator in cases.items():
        with pytest.raises(Unsound, match=words):
            Evaluator(program(operator)).run({}, {"x": x})


@pytest.mark.parametrize(
    "feeds", [{}, {"x": np.ones((1, 3))}, {"x": np.ones((1, 2)), "z": np.ones(1)}, {"x": np.ones((1, 2), np.int32)}]
)  # fmt: skip
def test_inputs_that_the_program_does_not_take_are_refused(feeds: dict[str, np.ndarray]) -> None:
    with pytest.raises(Unsound):
        Evaluator(program(step("add", x="x", y="x"))).run({}, feeds)


def test_shapes_of_several_inputs_belong_together() -> None:
    free = Type("int32", (1, None))
    shapes = dict.fromkeys(("a", "b"), ((1, 1), (1, 4)))
    both = Program(
        Path("none"), dict.fromkeys("ab", free), {}, ("y",), (step("concat", type_=free, values="a", axis=np.int32(1)),), shapes, 9
    )
    one, four = np.ones((1, 1), np.int32), np.ones((1, 4), np.int32)
    evaluator = Evaluator(both)
    assert evaluator.run({}, {"a": four, "b": four})[0]["y"].shape == (1, 4)
    for feeds in ({"a": one, "b": four}, {"a": np.ones((1, 2), np.int32), "b": four}):
        with pytest.raises(Unsound, match="takes no inputs of the shapes"):
            evaluator.run({}, feeds)


def test_a_state_is_read_as_it_was_written_and_several_live_side_by_side() -> None:
    kept = program(
        Operator("read_state", {"input": ("cache",)}, (("before", HALF),)), step("add", "after", x="before", y="x"),
        Operator("write_state", {"input": ("cache",), "data": ("after",)}, ()),
        Operator("read_state", {"input": ("cache",)}, (("y", HALF),)), states={"cache": HALF},
    )  # fmt: skip
    evaluator = Evaluator(kept)
    x = np.array([[1.0, 2.0]], np.float32)
    first, second = evaluator.start(), evaluator.start()
    _, first = evaluator.run(first, {"x": x})
    found, third = evaluator.run(first, {"x": x})
    assert found["y"].tolist() == [[2.0, 4.0]]
    other, _ = evaluator.run(second, {"x": 10 * x})
    assert other["y"].tolist() == [[10.0, 20.0]], "another text's state is not touched"
    again, _ = evaluator.run(first, {"x": x})
    assert again["y"].tolist() == [[2.0, 4.0]], "a state that is gone on from stays as it was"
    rounded, _ = evaluator.run(third, {"x": x * 0 + 1e-4})
    assert rounded["y"].tolist() == [[2.0, 4.0]], "states are in half precision"
