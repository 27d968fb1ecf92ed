"""What a pickled file of weights holds, read without running anything: its tensors by name, and numbers and texts beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.weights.pickled import read_pickle
from handlers.merge.weights.unpacked_base import header_dtype

if TYPE_CHECKING:
    import torch

OPERATION = "convert the weights to safetensors"
WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "weights", "params")
"""Keys under which trainers put a model's tensors, when a file holds more."""
LONGEST = 4096
"""Characters of a value that is kept as metadata."""


@dataclass(frozen=True)
class Table:
    """The contents of one file."""

    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Key → why it is not kept."""


def read(path: Path) -> Table:
    """The tensors of a file. Permanent where it holds none, where something in it would have to be run, and for what no file can hold."""
    content = read_pickle(path, OPERATION)
    inner, metadata, left_out = _model_of(content, path), dict[str, str](), dict[str, str]()
    if inner is not content:
        for key, value in content.items():
            if value is inner:
                continue
            if (text := _text(value)) is not None:
                metadata[str(key)] = text
            else:
                left_out[str(key)] = "it is neither a tensor of the model nor a number or a text"
    tensors = {}
    for key, value in inner.items():
        if _is_tensor(value):
            tensors[str(key)] = _plain(value, str(key), path)
        elif (text := _text(value)) is not None:
            metadata[str(key)] = text
        else:
            left_out[str(key)] = "it is neither a tensor nor a number or a text"
    return Table(tensors, metadata, left_out)


def _model_of(content: Any, path: Path) -> Mapping[Any, Any]:
    """Return the table of tensors in what a file holds."""
    if isinstance(content, Mapping):
        if any(map(_is_tensor, content.values())):
            return content
        for key in WRAPPERS:
            inner = content.get(key)
            if isinstance(inner, Mapping) and any(map(_is_tensor, inner.values())):
                return inner
    holds = f", but {', '.join(map(str, list(content)[:3]))}" if isinstance(content, Mapping) else f", but a {type(content).__name__}"
    raise Permanent(
        FaultCode.NO_TENSORS, OPERATION, f"it holds no table of tensors{holds}", "move the file out of the folder, or save a state_dict",
        path=path,
    )  # fmt: skip


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _text(value: object) -> str | None:
    """Return a number, a text, or a short list or table of them, as a text."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST else None
    try:
        text = json.dumps(value, allow_nan=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= LONGEST else None


def _plain(tensor: torch.Tensor, name: str, path: Path) -> torch.Tensor:
    """Return the tensor, if safetensors can hold it."""
    import torch

    why = None
    if tensor.layout is not torch.strided:
        why = "is sparse"
    elif tensor.is_quantized:
        why = "is quantized in PyTorch's own way"
    else:
        try:
            header_dtype(tensor.dtype)
        except StopIteration:
            why = f"has the dtype {str(tensor.dtype).removeprefix('torch.')}"
    if why is None:
        return tensor.detach().resolve_conj().resolve_neg()  # views that are still to be computed
    raise Permanent(
        FaultCode.NO_TENSORS, OPERATION, f"{name} {why}, which safetensors can't hold", "save the tensor as a plain one", path=path
    )
