"""Writes safetensors files of tensors whose bytes lie in pieces: by copying ranges of bytes, never a whole tensor in memory.

Called by the stage. No value is computed or cast, so that torch is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.archives import StoredTensor, read_archive
from daemon.contract.sharded.pieces import Piece, ShardedTensor
from handlers.consolidate.adapter_names import OPERATION
from handlers.consolidate.gather import copy_strided
from handlers.merge.plan.output_layout import Output, new_file
from handlers.tensors.file_io import ByteRange, copy_range, create, read_into, write_from

BLOCK = 16 << 20
"""Bytes that are held at a time, where a piece's rows have to be written apart."""
Moved = Callable[[int], None]


def write_file(folder: Path, target: Path, tensors: Mapping[str, ShardedTensor], moved: Moved) -> None:
    """Write the new file `target` of tensors whose pieces lie in `folder`, each under its key; `moved` is called with bytes done.

    Permanent where a piece is not what the checkpoint's description says. The order and the header are the safetensors library's.
    """
    plan = new_file(target.name, [Output(name, target.name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()])
    descriptor = create(target, plan.size)
    try:
        write_from(descriptor, memoryview(plan.header or b""), 0)
        for output, at in zip(plan.outputs, plan.starts, strict=True):
            copy_tensor(folder, tensors[output.name], descriptor, at, moved)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy_tensor(folder: Path, tensor: ShardedTensor, target: int, at: int, moved: Moved) -> None:
    """Copy all pieces of a tensor to byte `at` of the open file `target`."""
    for piece in tensor.pieces:
        if not piece.elements:
            continue
        path = folder / piece.file
        start, strides = _place_of(folder, tensor, piece)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        source = ByteRange(path, descriptor, start, piece.elements * tensor.width)
        try:
            if strides is None:
                _copy(source, tensor, piece, target, at, moved)
            else:
                copy_strided(source, strides, tensor, piece, target, at, moved, BLOCK)
        finally:
            os.close(descriptor)


def _copy(source: ByteRange, tensor: ShardedTensor, piece: Piece, target: int, at: int, moved: Moved) -> None:
    block: memoryview | None = None
    held = 0  # first byte of the piece that the block holds
    for first, place, length in tensor.runs(piece):
        if length >= BLOCK or length == source.size:
            copy_range(source.part(first, length), target, at + place, moved)
            continue
        if block is None or first + length > held + len(block):
            held = first
            count = max(1, BLOCK // length) * length
            block = memoryview(bytearray(min(count, source.size - first)))
            read_into(source.descriptor, block, source.start + first, source.path)
            moved(len(block))
        write_from(target, block[first - held : first - held + length], at + place)


def _place_of(folder: Path, tensor: ShardedTensor, piece: Piece) -> tuple[int, tuple[int, ...] | None]:
    """Return at which byte of its file a piece's values begin, and its strides. Permanent where it is not what the description promises."""
    if not piece.archived:
        return piece.start, piece.strides
    try:
        stored = read_archive(folder / piece.file, {}, start=piece.start, length=piece.length)
    except ValueError as error:
        raise damaged(folder / piece.file, f"the piece of {tensor.name} at byte {piece.start:,}: {error}") from None
    if not isinstance(stored, StoredTensor):
        what = getattr(stored, "reason", "is not a tensor")
        raise damaged(folder / piece.file, f"the piece of {tensor.name} at byte {piece.start:,} {what}")
    if stored.dtype != tensor.dtype or stored.shape != piece.sizes:
        raise damaged(
            folder / piece.file,
            f"the piece of {tensor.name} at byte {piece.start:,} is {stored.dtype} {list(stored.shape)}, but .metadata says {tensor.dtype}"
            f" {list(piece.sizes)}",
        )
    return stored.start, stored.strides


def damaged(path: Path, cause: str) -> Permanent:
    """Return the error of a checkpoint whose parts do not fit each other."""
    return Permanent(
        FaultCode.CHECKPOINT_DAMAGED, OPERATION, cause, "save the checkpoint again from the trainer, or take another one", path=path
    )


def same_bytes(folder: Path, first: ShardedTensor, second: ShardedTensor, scratch: Path) -> bool:
    """Return whether two tensors of one shape and dtype hold the same bytes; `scratch`: a folder for temporary files."""
    names = (scratch / "one", scratch / "other")
    descriptors = [create(name, first.size) for name in names]
    try:
        for tensor, descriptor in zip((first, second), descriptors, strict=True):
            copy_tensor(folder, tensor, descriptor, 0, lambda count: None)
        return _are_equal(descriptors, names, first.size)
    finally:
        for descriptor, name in zip(descriptors, names, strict=True):
            os.close(descriptor)
            name.unlink()


def _are_equal(descriptors: Sequence[int], names: Sequence[Path], size: int) -> bool:
    for at in range(0, size, BLOCK):
        blocks = [memoryview(bytearray(min(BLOCK, size - at))) for _ in descriptors]
        for descriptor, block, name in zip(descriptors, blocks, names, strict=True):
            read_into(descriptor, block, at, name)
        if blocks[0] != blocks[1]:
            return False
    return True
