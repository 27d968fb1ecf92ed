"""What `[merge]` asks for, in terms of the engine: dtypes and the division into files.

Called by `handlers.merge.written`. Nothing is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from handlers.model_files import SINGLE

DTYPES: dict[str, torch.dtype | None] = {
    "base": None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip
"""Value of `merge.dtype` → what every floating-point tensor is written as; None: each in its own dtype."""


def resharded(sizes: Iterable[tuple[str, int]], limit: int) -> dict[str, tuple[str, ...]]:
    """File → tensors, in their order, for tensors of (name, bytes) in files of at most `limit` bytes of values.

    A tensor larger than the limit gets a file of its own. One file is named as transformers names it, several as their number.
    """
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes:
        if not groups or size > room:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= size
    if len(groups) <= 1:
        return {SINGLE: tuple(name for group in groups for name in group)}
    return {f"model-{number:05}-of-{len(groups):05}.safetensors": tuple(group) for number, group in enumerate(groups, 1)}
