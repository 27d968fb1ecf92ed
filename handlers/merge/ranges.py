"""Copies of byte ranges to another place: what `handlers.merge.transfer` does for files that are laid out alike, for those that are not.

Called by the streaming engine for files whose header changes. In the kernel where the file system lets it, without a Python object of
the contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from handlers.merge.transfer import CHUNK, read_into, write_from


def copy_shifted(source: int, target: int, start: int, to: int, size: int, path: Path, moved: Callable[[int], None]) -> None:
    """Copy `size` bytes from `start` of `source` to `to` of `target`; `moved` is told the bytes of each step."""
    done, kernel = 0, True
    while done < size:
        length, count = min(CHUNK, size - done), 0
        if kernel:
            try:
                count = os.copy_file_range(source, target, length, start + done, to + done)
            except OSError:
                kernel = False  # whatever the reason: if it is a real one, the plain way meets it too
        if not count:
            buffer = memoryview(bytearray(length))
            read_into(source, buffer, start + done, path)
            write_from(target, buffer, to + done)
            count = length
        moved(count)
        done += count
