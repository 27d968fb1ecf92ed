"""Tensors that torch saved as views: transposed, sliced, expanded, sharing storages. They have the bytes that torch's own load gives."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.checkpoints.inspection import inspect
from daemon.contract.sharded import lightning
from daemon.contract.sharded.archives import OtherTensor, StoredTensor, read_archive
from daemon.contract.sharded.dcp import read_tensors
from daemon.contract.sharded.pickles import Unreadable
from daemon.contract.sharded.pieces import Piece, ShardedTensor
from handlers.consolidate import assemble
from handlers.consolidate.assemble import BLOCK, write_file
from tests.consolidate.helpers import consolidate, pinned

DTYPES = ["float32", "bfloat16", "float64", "float16", "int64", "int8", "bool", "int16"]
SIZES = st.integers(0, 5)


@st.composite
def views(draw: Any, storage: Any) -> Any:
    """A view of a part of a tensor's storage, by the steps that people write."""
    import torch

    view = storage
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["permute", "slice", "expand", "select", "diagonal", "unfold", "strided", "reshape"]))
        if kind == "permute" and view.dim():
            view = view.permute(draw(st.permutations(range(view.dim()))))
        elif kind == "slice" and view.dim():
            axis = draw(st.integers(0, view.dim() - 1))
            begin, end, step = draw(SIZES), draw(st.integers(0, 9)), draw(st.integers(1, 3))
            view = view[(slice(None),) * axis + (slice(begin, end, step),)]
        elif kind == "expand" and view.dim() < 5:
            view = view.expand(draw(st.integers(0, 3)), *view.shape)
        elif kind == "select" and view.dim() and view.shape[0]:
            view = view[draw(st.integers(0, view.shape[0] - 1))]
        elif kind == "diagonal" and view.dim() > 1:
            view = view.diagonal(draw(st.integers(-1, 1)))
        elif kind == "unfold" and view.dim() and view.shape[-1] > 1:
            view = view.unfold(-1, 2, 1)
        elif kind == "strided" and storage.numel() > 12:
            view = torch.as_strided(storage, (2, 3, 2), (draw(SIZES) % 4, 1, draw(SIZES) % 3), 2)
        elif kind == "reshape" and view.is_contiguous():
            view = view.reshape(-1)
    return view


@st.composite
def states(draw: Any) -> dict[str, Any]:
    """Tensors by name, several of them views of one storage."""
    import torch

    state = {}
    for number in range(draw(st.integers(1, 2))):
        shape = draw(st.lists(st.integers(0, 5), min_size=0, max_size=4))
        dtype = getattr(torch, draw(st.sampled_from(DTYPES)))
        count = torch.Size(shape).numel()
        storage = (torch.arange(count) % 2 == 0 if dtype == torch.bool else torch.arange(count).to(dtype)).reshape(shape)
        for part in range(draw(st.integers(1, 3))):
            state[f"w{number}.{part}"] = draw(views(storage))
    return state


def written(folder: Path, tensors: dict[str, ShardedTensor]) -> dict[str, Any]:
    from safetensors.torch import load_file

    (folder / "out.safetensors").unlink(missing_ok=True)
    write_file(folder, folder / "out.safetensors", tensors, lambda count: None)
    return load_file(folder / "out.safetensors")


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    import torch

    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("most", [1 << 24, 24], ids=["blocks that hold all", "blocks of some elements"])
@settings(max_examples=50, deadline=None)
@given(state=states())
def test_any_views_in_a_lightning_file_are_what_torch_reads(tmp_path_factory: pytest.TempPathFactory, state: Any, most: int) -> None:
    import torch

    folder = tmp_path_factory.mktemp("views")
    torch.save({"state_dict": state}, folder / "last.ckpt")
    expected = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "BLOCK", most)
        assert_same(written(folder, lightning.read_tensors(folder / "last.ckpt")), expected)


@settings(max_examples=40, deadline=None)
@given(state=states())
def test_any_views_in_a_distributed_checkpoint_are_what_torch_reads(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    folder = tmp_path_factory.mktemp("views") / "step-1"
    state = {name: tensor for name, tensor in state.items() if tensor.numel()}  # dcp itself loads no empty piece
    dcp.save(dict(state), checkpoint_id=folder, no_dist=True)
    expected = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in state.items()}
    if expected:
        dcp.load(expected, checkpoint_id=folder, no_dist=True)
    assert_same(written(folder, read_tensors(folder)), expected)


def test_a_model_with_transposed_weights_is_exported_from_both_forms(pico_base: Path, tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    weights = load_file(pico_base / "model.safetensors")
    views = {name: one.t().contiguous().t() if one.dim() == 2 else one for name, one in weights.items()}
    assert not all(one.is_contiguous() for one in views.values())
    pieces, module = tmp_path / "run" / "step-4", tmp_path / "other" / "checkpoints"
    dcp.save({"model": views}, checkpoint_id=pieces, no_dist=True)
    module.mkdir(parents=True)
    torch.save({"state_dict": {f"model.{name}": one for name, one in views.items()}}, module / "step=4.ckpt")
    for place in (pieces, module):
        assert inspect(place).complete, inspect(place).missing
        folder, _ = consolidate(pinned(place, tmp_path / f"pin-{place.name}"), pico_base, tmp_path / f"work-{place.name}")
        assert (folder / "model.safetensors").read_bytes() == (pico_base / "model.safetensors").read_bytes()


# What a hostile file may say


class Storage:
    """Pickles as a tensor of four fp32 values with any offset, sizes and strides."""

    def __init__(self, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.given = (offset, sizes, strides)


def forged(path: Path, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], values: int = 4) -> Path:
    """An archive of torch.save with a tensor of which its pickle says any offset, sizes and strides."""
    import torch

    source = io.BytesIO()
    torch.save({"state_dict": {"w": torch.arange(values, dtype=torch.float32)}}, source)

    class Forger(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", values) if isinstance(value, Storage) else None

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (Storage(0, (), ()), offset, sizes, strides, False, {})

    text = io.BytesIO()
    Forger(text, 2).dump({"state_dict": {"w": Tensor()}})
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, text.getvalue() if name.endswith("data.pkl") else old.read(name))
    return path


NUMBERS = st.one_of(st.integers(-3, 6), st.sampled_from([2**31, 2**61, 2**62, 2**63 - 1, -(2**62)]))


@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_whatever_an_archive_says_no_byte_outside_of_the_storage_is_read(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    import torch

    dimensions = data.draw(st.integers(0, 4))
    sizes, strides = (tuple(data.draw(st.lists(NUMBERS, min_size=dimensions, max_size=dimensions))) for _ in range(2))
    offset = data.draw(NUMBERS)
    folder = tmp_path_factory.mktemp("forged")
    file = forged(folder / "last.ckpt", offset, sizes, strides)
    try:
        found = read_archive(file, {})["state_dict"]["w"]
    except Unreadable as error:
        assert str(error)
        return
    assert isinstance(found, StoredTensor)
    if not found.elements:
        return
    used = found.strides or tuple(0 for _ in sizes)
    last = offset + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    assert 0 <= offset <= last < 4 and min((0, *used)) >= 0
    if found.elements < 1000:
        assert_same(written(folder, lightning.read_tensors(file)), torch.load(file, weights_only=True)["state_dict"])


@pytest.mark.parametrize(
    ("offset", "sizes", "strides"),
    [(0, (2,), (-1,)), (-1, (2,), (1,)), (0, (2, 2), (3, 2)), (1, (4,), (1,)), (0, (2,), (2**61,)), (2**61, (1,), (1,)), (4, (1,), (1,))],
)
def test_a_view_that_leaves_its_storage_is_damage(offset: int, sizes: tuple[int, ...], strides: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="damaged"):
        read_archive(forged(tmp_path / "last.ckpt", offset, sizes, strides), {})


def test_values_that_are_computed_when_they_are_read_are_refused_by_name(tmp_path: Path) -> None:
    import torch

    negative = torch.ones(4, dtype=torch.complex64).conj().imag
    assert negative.is_neg()
    torch.save({"state_dict": {"w": negative}}, tmp_path / "last.ckpt")
    assert isinstance(read_archive(tmp_path / "last.ckpt", {})["state_dict"]["w"], OtherTensor)
    with pytest.raises(Unreadable, match=r"w in last\.ckpt is saved as a view whose values are computed"):
        lightning.read_tensors(tmp_path / "last.ckpt")


# Memory


@pytest.mark.parametrize("stored", ["transposed", "every second column", "expanded", "three dimensions"])
def test_a_view_of_any_size_is_copied_in_a_few_blocks_of_memory(stored: str, tmp_path: Path) -> None:
    rows, columns = 1 << 13, 1 << 12
    shapes = {
        "transposed": ((rows, columns), (1, rows)),
        "every second column": ((rows, columns // 2), (columns, 2)),
        "expanded": ((rows, columns), (0, 1)),
        "three dimensions": ((64, rows // 64, columns), (1, 64 * columns, 64)),
    }
    sizes, strides = shapes[stored]
    with open(tmp_path / "raw", "wb") as stream:
        stream.truncate(rows * columns * 4)
        stream.seek(sum((size - 1) * step for size, step in zip(sizes, strides, strict=True)) * 4)
        stream.write(struct.pack("<I", 7))
    tensor = ShardedTensor("x", "F32", sizes, (Piece("raw", 0, 0, (0,) * len(sizes), sizes, strides=strides),))
    assert tensor.size > 3 * BLOCK
    tracemalloc.start()
    write_file(tmp_path, tmp_path / "out.safetensors", {"x": tensor}, lambda count: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * BLOCK
    with open(tmp_path / "out.safetensors", "rb") as stream:
        stream.seek(-4, os.SEEK_END)
        assert stream.read() == struct.pack("<I", 7)
