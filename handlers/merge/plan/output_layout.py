"""The plan of the output: which tensors each merged file will hold, and at which positions, decided before any byte is written.

Made by the merge, executed by the streaming engine. A file in which no name, dtype or shape changes keeps the base's header byte for
byte; any other gets a new one, sorted and aligned as the safetensors library writes it.
"""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.contract.models.safetensors import DTYPES, TensorInfo
from handlers.merge.plan.operations import Experts, Operation
from handlers.models.files import read_json
from handlers.models.folder import INDEX, SINGLE, ModelFolder

if TYPE_CHECKING:
    from handlers.tensors.sources import Source

ALIGNMENT = 8
METADATA = {"format": "pt"}
"""Of a file that has none of its own; transformers asks for it."""


@dataclass(frozen=True)
class Output:
    """One tensor of the merged model. Without operation and source its bytes are copied from the base."""

    name: str
    file: str
    dtype: str
    """As a header names it."""
    shape: tuple[int, ...]
    stored: TensorInfo | None = None
    """The base's tensor of which it is made; None for one that the adapter adds."""
    operation: Operation | None = None
    source: Source | None = None
    """Where its rows are read; None for the base's stored bytes."""
    module: str = ""
    """Its name in errors and progress."""
    origin: str = ""
    """The adapter's key that `source` reads; "" where it reads the base."""

    @property
    def computed(self) -> bool:
        """Whether its values pass through arithmetic."""
        return self.operation is not None or self.source is not None

    @property
    def changed(self) -> bool:
        """Whether the adapter changed it; being dequantized or cast alone is no change."""
        return self.operation is not None or bool(self.origin)

    @property
    def recast(self) -> bool:
        """Whether it is written in another dtype than it was stored in."""
        return self.stored is not None and self.stored.dtype != self.dtype

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns as the engine works through it: the first dimension and the rest; stacked experts as one tall matrix."""
        if isinstance(self.operation, Experts) and self.source is None:
            return math.prod(self.shape[:-1]), self.shape[-1]
        return (self.shape[0], math.prod(self.shape[1:])) if self.shape else (1, 1)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes in the output."""
        return self.elements * DTYPES[self.dtype][1] if self.dtype in DTYPES else self._like().size

    def _like(self) -> TensorInfo:
        return replace(self.stored, shape=self.shape) if self.stored else TensorInfo(self.file, self.dtype, self.shape, 0, 0)

    def describe(self) -> list[str]:
        """Return what determines its bytes, apart from base and adapter."""
        return [self.name, self.file, self.dtype, repr(self.shape), repr(self.stored), repr(self.operation), self.origin]


@dataclass(frozen=True)
class FilePlan:
    """One file: `starts` gives the position of each output; `header` is None where the base's own is kept."""

    name: str
    outputs: tuple[Output, ...]
    starts: tuple[int, ...]
    size: int
    header: bytes | None


@dataclass(frozen=True)
class Plan:
    """All files of the output."""

    files: tuple[FilePlan, ...]
    index: bytes | None
    """The index to write; None to copy the base's, or where there is none."""
    index_name: str | None
    """None for a model without an index."""

    @property
    def computed(self) -> list[Output]:
        """All outputs whose values are computed."""
        return [output for file in self.files for output in file.outputs if output.computed]

    @property
    def names(self) -> tuple[str, ...]:
        """All files of weights."""
        return tuple(file.name for file in self.files)

    def changes(self, model: ModelFolder) -> bool:
        """Return whether any file will differ from those of the model for which this is the plan."""
        return bool(self.computed) or any(file.header is not None for file in self.files) or set(self.names) != set(model.files.names)

    def describe(self) -> list[Any]:
        """Return what determines every byte, apart from base and adapter."""
        return [[file.name, file.starts, [output.describe() for output in file.outputs if output.computed]] for file in self.files]


def _metadata(path: Path) -> dict[str, str]:
    with open(path, "rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        table = json.loads(stream.read(length))
    metadata = table.get("__metadata__")
    return metadata if isinstance(metadata, dict) else METADATA


def build_header(outputs: Iterable[Output], metadata: Mapping[str, str]) -> bytes:
    """Length and header of a file that holds `outputs` in this order without gaps."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for output in outputs:
        table[output.name] = {"dtype": output.dtype, "shape": list(output.shape), "data_offsets": [at, at + output.size]}
        at += output.size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _width(output: Output) -> int:
    return DTYPES[output.dtype][1] if output.dtype in DTYPES else 1


def new_file(name: str, outputs: Iterable[Output], metadata: Mapping[str, str] = METADATA) -> FilePlan:
    """Return the plan of a file with a header of its own, laid out as the safetensors library writes it."""
    # The widest dtypes first, so that every tensor begins at a multiple of its element size.
    ordered = sorted(outputs, key=lambda output: (-_width(output), output.dtype, output.name))
    header = build_header(ordered, metadata)
    ends = list(itertools.accumulate((output.size for output in ordered), initial=len(header)))
    return FilePlan(name, tuple(ordered), tuple(ends[:-1]), ends[-1], header)


def _file(model: ModelFolder, name: str, before: Mapping[str, TensorInfo], outputs: list[Output]) -> FilePlan:
    path = model.path / name
    in_place = all(output.stored is None or output.stored.file == name for output in outputs)
    same = {output.name: (output.dtype, output.shape) for output in outputs}
    if in_place and same == {tensor: (info.dtype, info.shape) for tensor, info in before.items()}:
        ordered = sorted(outputs, key=lambda output: (before[output.name].start, before[output.name].end))
        return FilePlan(name, tuple(ordered), tuple(before[o.name].start for o in ordered), path.stat().st_size, None)
    return new_file(name, outputs, _metadata(path) if path.is_file() else METADATA)


def _index(model: ModelFolder, table: list[Output]) -> bytes:
    index = read_json(model.path / model.files.index, "read the weights' index") if model.files.index else {}
    index["weight_map"] = {output.name: output.file for output in sorted(table, key=lambda output: output.name)}
    given = index.get("metadata")
    metadata = dict(given) if isinstance(given, dict) else {}
    metadata["total_size"] = sum(output.size for output in table)
    if "total_parameters" in metadata:
        metadata["total_parameters"] = sum(output.elements for output in table)
    return (json.dumps({**index, "metadata": metadata}, indent=2, sort_keys=True) + "\n").encode()


def resharded(sizes: Iterable[tuple[str, int]], limit: int) -> dict[str, tuple[str, ...]]:
    """File → tensors, in their order, for tensors of (name, bytes) in files of at most `limit` bytes of values.

    A tensor larger than the limit gets a file of its own. One file is named as transformers names it, several as their number.
    """
    groups: list[list[str]] = []
    left = 0
    for name, size in sizes:
        if not groups or size > left:
            groups.append([])
            left = limit
        groups[-1].append(name)
        left -= size
    if len(groups) <= 1:
        return {SINGLE: tuple(name for group in groups for name in group)}
    return {f"model-{number:05}-of-{len(groups):05}.safetensors": tuple(group) for number, group in enumerate(groups, 1)}


def plan(model: ModelFolder, outputs: Iterable[Output]) -> Plan:
    """Return the plan for `outputs`, each in the file that it names, made of the model's weights."""
    table, files = list(outputs), model.files
    by_file: dict[str, list[Output]] = {}
    for output in table:
        by_file.setdefault(output.file, []).append(output)
    before: dict[str, dict[str, TensorInfo]] = {name: {} for name in by_file}
    for name, info in model.headers.items():
        before.setdefault(info.file, {})[name] = info
    plans = tuple(_file(model, name, before[name], by_file[name]) for name in sorted(by_file))
    if all(file.header is None for file in plans) and set(files.names) == set(by_file):
        return Plan(plans, None, files.index)
    several = len(plans) > 1 or (files.index is not None and set(files.names) == set(by_file))
    return Plan(plans, _index(model, table) if several else None, (files.index or INDEX) if several else None)
