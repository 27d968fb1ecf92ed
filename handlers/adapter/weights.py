"""adapter_model.safetensors as it is published: the checkpoint's tensors, byte for byte, with the metadata that readers ask for.

Called by the stage. Of a safetensors file the header alone may be written anew; the bytes behind it are copied. A `.bin` was unpickled with
`weights_only=True`; its tensors keep dtype and values.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

from handlers.merge.adapters.adapter import SAFETENSORS, Adapter
from handlers.tensors.file_io import ByteRange, copy_range

METADATA = {"format": "pt"}
ALIGNMENT = 8
"""Bytes: the format asks that the tensors begin at a multiple of this."""


def write(adapter: Adapter, folder: Path) -> int:
    """Write the adapter's tensors into the existing folder; the number of bytes of the file."""
    target = folder / SAFETENSORS
    if adapter.unpickled:
        _save(adapter, target)
    else:
        _copy(adapter.file, target)
    return target.stat().st_size


def _copy(source: Path, target: Path) -> None:
    """Copied and never linked: the trainer may still write into a file that the pin shares with it."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        (length,) = struct.unpack("<Q", reading.read(8))
        text = reading.read(length)
        table = json.loads(text)
        if table.get("__metadata__") != METADATA:
            text = json.dumps({**table, "__metadata__": METADATA}, separators=(",", ":"), ensure_ascii=False).encode()
            text += b" " * (-len(text) % ALIGNMENT)
        writing.write(struct.pack("<Q", len(text)) + text)
        writing.flush()
        begin, size = 8 + length, os.fstat(reading.fileno()).st_size
        copy_range(ByteRange(source, reading.fileno(), begin, size - begin), writing.fileno(), 8 + len(text), lambda count: None)


def _save(adapter: Adapter, target: Path) -> None:
    from safetensors.torch import save_file

    # Cloned, since tensors of a pickle may share memory, which the format can't say.
    save_file({key: value.detach().contiguous().clone() for key, value in adapter.unpickled.items()}, target, metadata=METADATA)
