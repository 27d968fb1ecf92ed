"""Pages of mapped files that a process need not hold any more. Free of torch and onnxruntime."""

from __future__ import annotations

import mmap

import numpy as np


def release(file: np.memmap, first: int = 0, last: int | None = None) -> None:
    """The pages with the bytes `first` to `last` of a map count for this process no more until they are read again; the page cache may
    keep them."""
    pages: mmap.mmap = file._mmap  # type: ignore[attr-defined]  # numpy's own map of the file, which it keeps open
    last = len(pages) if last is None else last
    start = first - first % mmap.PAGESIZE
    if last > first:
        pages.madvise(mmap.MADV_DONTNEED, start, last - start)
