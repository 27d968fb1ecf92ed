"""Lightning's `.ckpt` files: the tensors of `state_dict` in an archive of torch.save, and which of several files is the newest.

The form is Lightning's (lightning/pytorch/trainer/connectors/checkpoint_connector.py, `dump_checkpoint`). What else is in it (optimizers,
loops, hyperparameters) is passed over; of classes only those are known that carry plain values.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from daemon.contract.sharded.archives import OtherTensor, StoredTensor, as_dict, read_archive
from daemon.contract.sharded.pickles import Unreadable, inert
from daemon.contract.sharded.pieces import Piece, ShardedTensor, tensor_name

SUFFIX = ".ckpt"
_STEP = re.compile(r"(?:^|[-_])step[=_-]?([0-9]{1,12})(?:[-_.]|$)")
_PATHS = ("PosixPath", "PurePosixPath", "Path", "PurePath", "WindowsPath", "PureWindowsPath")


def _dictionary(*arguments: Any) -> dict[Any, Any]:
    """A mapping whose items the pickle sets afterwards."""
    return {}


PLAIN_CLASSES: dict[str, Any] = {
    "argparse.Namespace": inert("argparse.Namespace"),
    "builtins.set": lambda values=(): list(values),
    "builtins.list": list,
    "builtins.dict": as_dict,
    "builtins.int": inert("int"),
    "builtins.float": inert("float"),
    "collections.defaultdict": _dictionary,
    "lightning.fabric.utilities.data.AttributeDict": _dictionary,
    "lightning_fabric.utilities.data.AttributeDict": _dictionary,
    "pytorch_lightning.utilities.parsing.AttributeDict": _dictionary,
    "lightning.pytorch.utilities.parsing.AttributeDict": _dictionary,
    "numpy.core.multiarray.scalar": inert("numpy.scalar"),
    "numpy._core.multiarray.scalar": inert("numpy.scalar"),
    "numpy.dtype": inert("numpy.dtype"),
    "_codecs.encode": inert("bytes"),
    "datetime.timedelta": inert("datetime.timedelta"),
    **{f"pathlib.{name}": inert(name) for name in _PATHS},
    **{f"pathlib._local.{name}": inert(name) for name in _PATHS},
}
"""Classes that carry plain values, as a training's state has them beside its tensors."""


def step_in(name: str) -> int | None:
    """The step in a file's name (`epoch=0-step=6.ckpt`); None where there is none."""
    match = _STEP.search(name.removesuffix(SUFFIX))
    return int(match[1]) if match else None


def newest(names: Collection[str]) -> str | None:
    """The file that was written last, by the steps in the names; else `last.ckpt`, else the only one. None where none can be told."""
    numbered = [(step, name) for name in names if (step := step_in(name)) is not None]
    if numbered:
        return max(numbered)[1]
    if "last.ckpt" in names:
        return "last.ckpt"
    return next(iter(names)) if len(names) == 1 else None


def read_tensors(file: Path) -> dict[str, ShardedTensor]:
    """Name → tensor of the module's state in a `.ckpt` file. Raises Unsafe, Unreadable, OSError."""
    value = read_archive(file, PLAIN_CLASSES)
    state = value.get("state_dict") if isinstance(value, dict) else None
    if not isinstance(state, dict):
        raise Unreadable(f"{file.name} has no state_dict")
    return of_state(state, file.name)


def of_state(state: Any, file: str) -> dict[str, ShardedTensor]:
    """Name → tensor of a module's state that lies in an archive. Raises Unreadable."""
    if not isinstance(state, dict):
        raise Unreadable(f"{file} has no table of tensors")
    tensors = {}
    for name, tensor in state.items():
        if isinstance(tensor, OtherTensor):
            raise Unreadable(f"{tensor_name(name)} in {file} {tensor.reason}")
        if isinstance(tensor, StoredTensor):
            offsets = (0,) * len(tensor.shape)
            piece = Piece(file, tensor.start, tensor.size, offsets, tensor.shape, strides=tensor.strides)
            tensors[tensor_name(name)] = ShardedTensor(tensor_name(name), tensor.dtype, tensor.shape, (piece,))
    return tensors
