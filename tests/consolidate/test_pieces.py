"""Pieces in one process: what covers a tensor and what doesn't, every kind of damage, and pickles that would run code."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.checkpoints.inspection import inspect
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.archives import StoredTensor, read_archive
from daemon.contract.sharded.dcp import read_tensors
from daemon.contract.sharded.pickles import MOST_BYTES, Unreadable, Unsafe, read_pickle
from daemon.contract.sharded.pieces import Piece, ShardedTensor
from handlers.consolidate.adapter_names import peft_names, refuse_trained_beside
from handlers.consolidate.assemble import write_file
from tests.consolidate.helpers import consolidate, pinned


class Bomb:
    """What a malicious pickle holds: a call of os.system."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture(scope="module")
def plain(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run/step-4` with the base's weights, saved by torch in this process. Read only."""
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("plain") / "run" / "step-4"
    weights = load_file(pico_base / "model.safetensors")
    dcp.save({"model": weights, "optimizer": {"state": {"x": weights}}, "note": "text"}, checkpoint_id=folder, no_dist=True)
    return folder


def copied(plain: Path, folder: Path) -> Path:
    shutil.copytree(plain, folder / "run" / "step-4")
    return folder / "run" / "step-4"


def changed(checkpoint: Path, change: Callable[[Any], None]) -> Path:
    """The checkpoint with its description changed by torch's own classes."""
    metadata = pickle.loads((checkpoint / ".metadata").read_bytes())
    change(metadata)
    (checkpoint / ".metadata").write_bytes(pickle.dumps(metadata))
    return checkpoint


def test_a_checkpoint_of_one_process_gives_the_models_file(plain: Path, pico_base: Path, tmp_path: Path) -> None:
    folder, output = consolidate(pinned(plain, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (pico_base / "model.safetensors").read_bytes()
    assert output.figures["left_out"] == []
    assert not [path.name for path in folder.iterdir() if path.suffix == ".distcp" or path.name == ".metadata"]


# What asks to run code


def test_a_description_that_would_run_code_is_refused_and_never_runs_it(plain: Path, tmp_path: Path) -> None:
    checkpoint, mark = copied(plain, tmp_path), tmp_path / "ran"

    def plant(metadata: Any) -> None:
        metadata.planner_data = Bomb(mark)

    found = inspect(changed(checkpoint, plant))
    assert found.refusal is not None
    assert found.refusal.code == FaultCode.UNSAFE_PICKLE
    assert "posix.system" in found.refusal.cause
    assert not mark.exists()
    with pytest.raises(Permanent) as error:
        consolidate(pinned(checkpoint, tmp_path / "pin"), None, tmp_path / "work")
    assert error.value.fault.code == FaultCode.UNSAFE_PICKLE
    assert not mark.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "os.system", "torch.load", "builtins.getattr", "torch.storage._load_from_bytes"])
def test_no_function_can_be_named(name: str, tmp_path: Path) -> None:
    module, _, function = name.rpartition(".")
    for data in (
        b"\x80\x02c" + f"{module}\n{function}\n".encode() + b")R.",
        pickle.dumps((module, function), 4)[:-1].replace(b"\x86\x94", b"\x93)R") + b".",
    ):
        with pytest.raises(Unreadable):
            read_pickle(data, {})
    with pytest.raises(Unsafe) as error:
        read_pickle(b"\x80\x02c" + f"{module}\n{function}\n".encode() + b")R.", {})
    assert error.value.name == name


def test_a_piece_that_would_run_code_is_refused_and_never_runs_it(plain: Path, pico_base: Path, tmp_path: Path) -> None:
    import torch

    checkpoint, mark = copied(plain, tmp_path), tmp_path / "ran"
    bomb = io.BytesIO()
    torch.save(Bomb(mark), bomb)
    (file,) = checkpoint.glob("*.distcp")
    at = file.stat().st_size
    with open(file, "ab") as stream:
        stream.write(bomb.getvalue())

    def point(metadata: Any) -> None:
        index = next(key for key in metadata.storage_data if key.fqn == "model.model.norm.weight")
        place = metadata.storage_data[index]
        place.offset, place.length = at, len(bomb.getvalue())

    pin = pinned(changed(checkpoint, point), tmp_path / "pin")
    with pytest.raises(Permanent, match=r"posix\.system"):
        consolidate(pin, pico_base, tmp_path / "work")
    assert not mark.exists()


# Damage


def _first(metadata: Any, name: str = "model.model.embed_tokens.weight") -> Any:
    return metadata.state_dict_metadata[name]


def _place(metadata: Any) -> Any:
    return next(place for index, place in metadata.storage_data.items() if index.fqn == "model.model.embed_tokens.weight")


def _set(holder: Any, **values: Any) -> None:
    vars(holder).update(values)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda metadata: _set(_first(metadata).chunks[0], sizes=(319, 64)), "leave a gap"),
        (lambda metadata: _first(metadata).chunks.append(_first(metadata).chunks[0]), "overlap"),
        (lambda metadata: _set(_first(metadata), size=(300, 64)), "is outside the tensor"),
        (lambda metadata: _set(_place(metadata), offset=1 << 40), "ends at byte"),
        (lambda metadata: _set(_place(metadata), relative_path="../../secret"), "not the name of a file"),
        (lambda metadata: _set(_place(metadata), relative_path="__9_0.distcp"), "is not there"),
        (lambda metadata: _set(metadata, storage_data={}), "does not say where"),
        (lambda metadata: _set(_place(metadata), transform_descriptors=["stream.zstd"]), "extension"),
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_not_complete_and_says_why(
    plain: Path, tmp_path: Path, change: Callable[[Any], None], said: str
) -> None:
    found = inspect(changed(copied(plain, tmp_path), change))
    assert not found.complete
    assert said in " ".join(found.missing)


def _other_dtype(metadata: Any) -> None:
    import torch

    _first(metadata).properties.dtype = torch.float16


def _other_shape(metadata: Any) -> None:
    import torch

    one = _first(metadata)
    one.size, one.chunks[0].sizes = torch.Size([64, 320]), torch.Size([64, 320])


def test_a_shape_that_is_not_the_bases_is_told_with_what_to_do(plain: Path, pico_base: Path, tmp_path: Path) -> None:
    with pytest.raises(Permanent) as error:
        consolidate(pinned(changed(copied(plain, tmp_path), _other_shape), tmp_path / "pin"), pico_base, tmp_path / "work")
    assert error.value.fault.code == FaultCode.CONFIG_MISMATCH
    assert "[64, 320]" in error.value.fault.cause


def _swapped(metadata: Any) -> None:
    places = metadata.storage_data
    one, other = (next(key for key in places if key.fqn == f"model.model.{name}.weight") for name in ("norm", "embed_tokens"))
    places[one], places[other] = places[other], places[one]


@pytest.mark.parametrize("change", [_other_dtype, _swapped])
def test_pieces_that_are_not_what_is_said_of_them_end_the_stage_with_a_fault(
    plain: Path, pico_base: Path, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    pin = pinned(changed(copied(plain, tmp_path), change), tmp_path / "pin")
    with pytest.raises(Permanent) as error:
        consolidate(pin, pico_base, tmp_path / "work")
    assert error.value.fault.code == FaultCode.CHECKPOINT_DAMAGED
    assert ".metadata says" in error.value.fault.cause


def test_a_description_without_any_of_its_pieces_names_those_that_are_missing(plain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "step-4"
    folder.mkdir(parents=True)
    shutil.copy(plain / ".metadata", folder)
    (file,) = plain.glob("*.distcp")
    assert inspect(folder).missing == (f"the pieces that its .metadata names are not there yet: {file.name}",)
    (folder / ".metadata").write_bytes(b"no pickle")
    assert inspect(folder).missing == ("no adapter and no model weights in it yet",)


def test_a_file_that_is_cut_short_is_not_complete(plain: Path, tmp_path: Path) -> None:
    checkpoint = copied(plain, tmp_path)
    (file,) = checkpoint.glob("*.distcp")
    os.truncate(file, file.stat().st_size - 1000)
    assert not inspect(checkpoint).complete


@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_description_ends_in_anything_but_words(plain: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    whole = bytearray((plain / ".metadata").read_bytes())
    kind = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        del whole[at:]
    elif kind == "flip":
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        whole[at:at] = data.draw(st.binary(min_size=1, max_size=12))
    folder = tmp_path_factory.mktemp("damaged")
    (folder / ".metadata").write_bytes(whole)
    for file in plain.glob("*.distcp"):
        os.link(file, folder / file.name)
    try:
        tensors = read_tensors(folder)
    except Unreadable as error:
        assert str(error)
    else:
        assert all(tensor.problem() is None for tensor in tensors.values())


@settings(max_examples=70, deadline=None)
@given(data=st.data())
def test_no_damage_to_an_archive_ends_in_anything_but_words(plain: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    piece = read_tensors(plain)["model.model.norm.weight"].pieces[0]
    whole = bytearray((plain / piece.file).read_bytes()[piece.start : piece.start + piece.length])
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    file = tmp_path_factory.mktemp("archive") / "one"
    file.write_bytes(whole)
    try:
        found = read_archive(file, {})
    except Unreadable as error:
        assert str(error)
    else:
        assert not isinstance(found, StoredTensor) or found.start + found.size <= len(whole)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02r\xff\xff\xff\xff.", b"\x80\x02Nr\xff\xff\xff\x7f.", b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x80\x02(.",
        b"\x80\x02t.", b"\x80\x02\x8b\xff\xff\xff\x7f.", b"\x80\x02}(](K\x01eK\x02u.", b"", b"\x80\x02", b"\x80\x02cos\n",
    ],
)  # fmt: skip
def test_sizes_that_a_pickle_claims_are_not_believed(data: bytes) -> None:
    try:
        read_pickle(data, {})
    except Unreadable as error:
        assert str(error)


def test_a_key_of_nested_tuples_which_would_take_forever_to_hash_is_never_hashed() -> None:
    nested = b"\x80\x02}" + b"K\x01" + b"2\x86" * 60 + b"K\x01s."
    assert list(read_pickle(nested, {}).values()) == [1]


def test_a_description_of_any_length_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="more than"):
        read_pickle(bytes(MOST_BYTES + 1), {})


def test_a_directory_of_an_archive_that_is_damaged_anywhere_ends_in_words(tmp_path: Path) -> None:
    """Places before the file's beginning among them: zipfile gives those as negative numbers."""
    import torch

    torch.save(torch.ones(3), tmp_path / "one")
    whole = (tmp_path / "one").read_bytes()
    outcomes = set()
    for at in range(len(whole) - 120, len(whole)):
        for bit in (1, 8, 128):
            changed = bytearray(whole)
            changed[at] ^= bit
            (tmp_path / "two").write_bytes(changed)
            try:
                outcomes.add(type(read_archive(tmp_path / "two", {})))
            except Unreadable as error:
                outcomes.add(Unreadable)
                assert str(error)
    assert outcomes == {StoredTensor, Unreadable}


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(1 << 20))
    with pytest.raises(Unreadable, match="compressed"):
        read_archive(tmp_path / "one", {})


# Boxes


def _boxes(shape: tuple[int, ...], cuts: list[list[int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    ends = [sorted({0, size, *(cut % (size + 1) for cut in cut_at)}) for size, cut_at in zip(shape, cuts, strict=True)]
    found = itertools.product(*(list(itertools.pairwise(one)) for one in ends))
    return [(tuple(begin for begin, _ in box), tuple(end - begin for begin, end in box)) for box in found]


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=0, max_size=4).map(tuple),
    cuts=st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=4, max_size=4),
    drop=st.integers(0, 50),
)
def test_any_division_into_boxes_is_put_together_and_any_box_less_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, shape: tuple[int, ...], cuts: list[list[int]], drop: int
) -> None:
    import torch
    from safetensors.torch import load_file

    folder = tmp_path_factory.mktemp("boxes")
    values = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
    pieces, at = [], 0
    with open(folder / "raw", "wb") as stream:
        for offsets, sizes in _boxes(shape, cuts[: len(shape)]):
            part = values[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))]
            stream.write(part.contiguous().numpy().tobytes())
            pieces.append(Piece("raw", at, part.numel() * 4, offsets, sizes))
            at += part.numel() * 4
    tensor = ShardedTensor("x", "I32", shape, tuple(pieces))
    assert tensor.problem() is None
    write_file(folder, folder / "out.safetensors", {"x": tensor}, lambda count: None)
    assert torch.equal(load_file(folder / "out.safetensors")["x"], values)
    one = drop % len(pieces)
    without = ShardedTensor("x", "I32", shape, tuple(pieces[:one] + pieces[one + 1 :]))
    assert "gap" in str(without.problem())
    twice = ShardedTensor("x", "I32", shape, (*pieces, pieces[one]))
    assert "overlap" in str(twice.problem())
    if len(pieces) > 1:
        other = (one + 1) % len(pieces)
        moved = [*pieces]
        moved[one] = Piece("raw", 0, pieces[one].length, pieces[other].offsets, pieces[one].sizes)
        assert ShardedTensor("x", "I32", shape, tuple(moved)).problem() is not None


# Memory


@pytest.mark.slow
def test_a_tensor_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """256 MiB in columns, put together with at most a few blocks of them allocated."""
    import tracemalloc

    from handlers.consolidate.assemble import BLOCK

    rows, columns, ranks = 1 << 14, 1 << 12, 4
    size = rows * columns * 4
    with open(tmp_path / "raw", "wb") as stream:
        stream.truncate(size)
        stream.seek(size - 4)
        stream.write(struct.pack("<I", 7))
    width = columns // ranks
    pieces = [Piece("raw", size // ranks * one, size // ranks, (0, one * width), (rows, width)) for one in range(ranks)]
    tensor = ShardedTensor("x", "F32", (rows, columns), tuple(pieces))
    tracemalloc.start()
    write_file(tmp_path, tmp_path / "out.safetensors", {"x": tensor}, lambda count: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * BLOCK < size / 5
    with open(tmp_path / "out.safetensors", "rb") as stream:
        stream.seek(-4, os.SEEK_END)
        assert stream.read() == struct.pack("<I", 7)


# Lightning


def test_a_lightning_file_gives_the_models_file_whatever_its_module_calls_it(pico_base: Path, tmp_path: Path) -> None:
    import argparse

    import torch
    from safetensors.torch import load_file

    weights = load_file(pico_base / "model.safetensors")
    state = {f"net.{name}": value for name, value in weights.items()} | {"net.lm_head.weight": weights["model.embed_tokens.weight"]}
    whole = {"state_dict": state, "hyper_parameters": {"args": argparse.Namespace(lr=0.1, out=tmp_path)}, "global_step": 6}
    (tmp_path / "checkpoints").mkdir()
    torch.save(whole, tmp_path / "checkpoints" / "epoch=0-step=6.ckpt")
    folder, output = consolidate(pinned(tmp_path / "checkpoints", tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (pico_base / "model.safetensors").read_bytes()
    assert output.figures["left_out"] == ["net.lm_head.weight"]


def test_names_that_fit_in_no_way_are_told(pico_base: Path, tmp_path: Path) -> None:
    import torch

    (tmp_path / "checkpoints").mkdir()
    torch.save({"state_dict": {"net.other.weight": torch.ones(3)}}, tmp_path / "checkpoints" / "last.ckpt")
    with pytest.raises(Permanent, match=r"net\.other\.weight") as error:
        consolidate(pinned(tmp_path / "checkpoints", tmp_path / "pin"), pico_base, tmp_path / "work")
    assert error.value.fault.code == FaultCode.SHARDS_UNMATCHED


# Adapters with their base beside them: what is left out must be the base's

_LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
_LORA = (f"{_LAYER}.lora_A.default.weight", f"{_LAYER}.lora_B.default.weight", f"{_LAYER}.base_layer.weight")


@pytest.mark.parametrize("twice", [f"_orig_mod.{_LAYER}.lora_A.default.weight", f"{_LAYER}.lora_A.weight"])
def test_two_tensors_that_would_get_one_name_are_refused(twice: str) -> None:
    with pytest.raises(Permanent, match="both get the name") as error:
        peft_names([*_LORA, twice], set())
    assert error.value.fault.code == FaultCode.SHARDS_UNMATCHED


def test_trained_tokens_are_the_adapters() -> None:
    tokens = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    names = peft_names([*_LORA, f"{tokens}.default", "base_model.model.model.embed_tokens.token_adapter.base_layer.weight"], set())
    assert set(names.values()) == {f"{_LAYER}.lora_A.weight", f"{_LAYER}.lora_B.weight", tokens}


@pytest.mark.parametrize(
    ("name", "shape", "config", "said"),
    [
        (f"{_LAYER}.base_layer.bias", (4,), {"bias": "all"}, "biases were trained"),
        ("base_model.model.model.norm.bias", (4,), {"bias": "lora_only"}, "biases were trained"),
        ("base_model.model.model.embed_tokens.weight", (9, 4), {}, "changed for this training"),
        ("model.base_model.model._orig_mod.lm_head.original_module.weight", (9, 4), {}, "changed for this training"),
        (f"{_LAYER}.base_layer.bias", (4,), {"bias": "none"}, None),
        ("base_model.model.model.embed_tokens.weight", (8, 4), {}, None),
    ],
)
def test_what_was_trained_beside_the_adapter_is_never_left_out_silently(
    name: str, shape: tuple[int, ...], config: dict[str, Any], said: str | None
) -> None:  # fmt: skip
    base = {"model.embed_tokens.weight": (8, 4), "lm_head.weight": (8, 4)}
    if said is None:
        refuse_trained_beside({name: shape}, config, base)
        return
    with pytest.raises(Permanent, match=said):
        refuse_trained_beside({name: shape}, config, base)
