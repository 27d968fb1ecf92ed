"""Reading tensors by rows, casting them, and dividing them into files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from daemon.contract.faults.errors import Permanent
from daemon.contract.models.safetensors import read_header
from handlers.merge.plan.output_layout import resharded
from handlers.tensors.file_io import OpenFiles
from handlers.tensors.sources import CastSource, Source, StoredSource


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., StoredSource]:
    """Makes a source over a tensor that lies in a file between two others."""

    def make(tensor: torch.Tensor) -> StoredSource:
        path = tmp_path / "model.safetensors"
        save_file({"a": torch.ones(3, dtype=torch.uint8), "t": tensor, "z": torch.ones(5)}, path)
        return StoredSource("t", path, read_header(path)["t"])

    return make


def read(source: Source, dtype: torch.dtype, rows: int) -> torch.Tensor:
    """A source as a whole, by blocks of `rows`."""
    out = torch.empty(source.shape, dtype=dtype)
    for first in range(0, source.shape[0], rows):
        count = min(rows, source.shape[0] - first)
        source.rows(first, count, out[first : first + count])
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64])
@pytest.mark.parametrize("shape", [(7,), (7, 3), (7, 2, 3), (7, 2, 1, 2)])
def test_rows_are_read_as_they_lie_and_exactly_as_fp32(stored: Callable[..., StoredSource], dtype: torch.dtype, shape: tuple[int]) -> None:
    tensor = torch.randn(shape).to(dtype)
    source = stored(tensor)
    assert (source.name, source.shape, source.dtype) == ("t", shape, dtype)
    for rows in (1, 2, 7):
        assert torch.equal(read(source, dtype, rows).view(torch.uint8), tensor.view(torch.uint8))
        assert torch.equal(read(source, torch.float32, rows), tensor.float())


def test_a_file_that_ends_too_early_is_named(stored: Callable[..., StoredSource]) -> None:
    source = stored(torch.randn(64, 64))
    path = source._reader.path
    os.truncate(path, path.stat().st_size - 64)
    with pytest.raises(Permanent, match=r"model.safetensors\): the file ends at byte"):
        read(source, torch.float32, 64)


def test_no_descriptor_stays_open(stored: Callable[..., StoredSource]) -> None:
    source = stored(torch.randn(8, 8))
    before = len(os.listdir("/proc/self/fd"))
    read(source, torch.float32, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_cast_rounds_once(stored: Callable[..., StoredSource]) -> None:
    tensor = torch.randn(9, 5)
    source = stored(tensor)
    assert torch.equal(read(CastSource(source, torch.bfloat16), torch.bfloat16, 2), tensor.bfloat16())
    assert torch.equal(read(CastSource(source, torch.bfloat16), torch.float32, 2), tensor)  # not rounded before a delta is added


def test_a_value_that_fp16_cannot_hold_is_an_error_with_name_and_value(stored: Callable[..., StoredSource]) -> None:
    tensor = torch.ones(4, 4)
    tensor[2, 1] = -70000
    with pytest.raises(Permanent, match=r"write t as float16: it holds -70000, and the largest float16 value is 65504") as caught:
        read(CastSource(stored(tensor), torch.float16), torch.float16, 2)
    assert caught.value.fault.code == "dtype-overflow"


def test_infinity_stays_infinity_and_the_last_finite_value_fits(stored: Callable[..., StoredSource]) -> None:
    tensor = torch.tensor([[float("-inf"), 65504.0, 65519.0]])
    assert read(CastSource(stored(tensor), torch.float16), torch.float16, 1).tolist() == [[float("-inf"), 65504.0, 65504.0]]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
@settings(deadline=None)
def test_every_tensor_gets_a_place_in_order_and_no_file_is_too_large(sizes: list[int], limit: int) -> None:
    named = [(f"t{number}", size) for number, size in enumerate(sizes)]
    plan = resharded(named, limit)
    assert [name for names in plan.values() for name in names] == [name for name, _ in named]
    for names in plan.values():
        assert len(names) <= 1 or sum(dict(named)[name] for name in names) <= limit
    # As few files as the order allows: the first tensor of a file never had room in the one before.
    files = list(plan.values())
    assert all(sum(dict(named)[name] for name in (*one, other[0])) > limit for one, other in itertools.pairwise(files))


def test_files_are_named_as_transformers_names_them() -> None:
    assert list(resharded([("a", 5), ("b", 5)], 5)) == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert list(resharded([("a", 5)], 5)) == ["model.safetensors"]


def test_files_that_are_read_many_times_are_opened_once_and_closed_at_the_end(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.write_bytes(path.name.encode() * 50 + b"end")
    before, found = len(os.listdir("/proc/self/fd")), bytearray(3)
    with OpenFiles() as files:
        for _ in range(40):
            for path in paths:
                files.read(path, memoryview(found), 50)
                assert found == b"end"
        assert len(os.listdir("/proc/self/fd")) == before + 2
        with pytest.raises(Permanent, match="the file ends at byte 53"):
            files.read(paths[0], memoryview(found), 51)
    assert len(os.listdir("/proc/self/fd")) == before
