"""What `ckptd convert` did to a folder. Pure; written by `handlers.convert`, printed by the verb."""

from __future__ import annotations

from pydantic import Field

from daemon.contract.faults.errors import Fault
from daemon.contract.values import Frozen


class ConvertedFile(Frozen):
    """One file of weights."""

    source: str
    """Path in the folder that was converted."""
    target: str
    """Path in the new folder."""
    tensors: int
    """Tensors of the file."""
    size_bytes: int
    """Bytes of the new file."""
    metadata: dict[str, str]
    """What the file holds beside tensors: numbers and texts, as texts; `format` says that the tensors are PyTorch's."""


class Conversion(Frozen):
    """A folder whose weights were converted to safetensors, each tensor compared with its source."""

    source: str
    """The folder that was converted."""
    target: str
    """The new folder."""
    converted: tuple[ConvertedFile, ...] = ()
    """The files of weights."""
    copied: tuple[str, ...] = ()
    """Paths of the files that were copied as they are."""
    left_out: dict[str, str] = Field(default_factory=dict)
    """Path → why the file, or a part of a file, is not in the new folder."""


class Answer(Frozen):
    """What the child says: one of both."""

    conversion: Conversion | None = None
    fault: Fault | None = None
    transient: bool = False
    """The fault may pass: a full disk, for example."""
