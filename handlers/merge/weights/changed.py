"""Which stored tensors differ, by their bytes, which are read in pieces.

Called by `handlers.merge.api` after a merge by PEFT, which does not say what it changed, and where weights may be tied.
"""

from __future__ import annotations

from daemon.contract.models.safetensors import TensorInfo
from handlers.models.folder import ModelFolder


def changed_tensors(base: ModelFolder, output: ModelFolder) -> tuple[int, int]:
    """(tensors, elements) whose bytes in `output` differ from the base's, or that only `output` has."""
    before = {} if base.pickled else base.headers
    changed = [info for name, info in output.headers.items() if name not in before or not equal(base, before[name], output, info)]
    return len(changed), sum(info.elements for info in changed)


def equal(base: ModelFolder, before: TensorInfo, output: ModelFolder, after: TensorInfo) -> bool:
    """Return whether two tensors, each stored in a model's files, have the same dtype, shape and bytes."""
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return False
    with open(base.path_of(before), "rb") as first, open(output.path_of(after), "rb") as second:
        first.seek(before.start)
        second.seek(after.start)
        left = before.size
        while left:
            count = min(left, 1 << 22)
            if first.read(count) != second.read(count):
                return False
            left -= count
    return True
