"""Whether a package has the weights of the merged model: every matrix and vector of its programs, beside the tensor that it came from.

Called by the engine, in a worker, before the model is loaded: a form in few bits differs from the live model anyway, so that its answers
alone can't show one damaged block. Weights that keep their type must be there to the bit. What was rounded to a scale must lie within half
a step of its weight; what is a place in a table must lie near it in every block, LOST says how near.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.coreml.evaluation import package
from handlers.coreml.evaluation.blobs import Unreadable
from handlers.coreml.evaluation.decompression import PREFIX, STORED, stored_as
from handlers.coreml.evaluation.evaluator import constant
from handlers.graphs import graphset
from handlers.models.folder import ModelFolder

LARGEST = {"int8": 127, "int4": 7}
"""Type that weights are rounded to → the whole number that the largest weight of a block becomes."""
STEP = 0.65
"""Largest difference from a rounded weight, in steps. Half a step is lost by rounding; the weight and its scale are in half precision,
which moves 127 steps by 0.06 each."""
LOST = 0.8
"""Largest root mean square of what a table of 16 numbers loses, over that of the weights, in a block.

Measured in matrices of normal and heavy-tailed numbers, and with rows or columns ten times as large: at most 0.6, with normal ones 0.21.
Weights of another matrix are at 1.4, a block of zeros at 1."""
BLOCK = 128
"""Weights of such a block, or a row's where it has fewer."""
NAMED = 3
_SMALLEST = 2.0**-24
"""The smallest number of half precision: a scale near it is off by as much."""
_MARK = "p_program_"
"""What the name of a weight begins with; then comes its name in the model, with underscores."""
_STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


@dataclass(frozen=True)
class Weight:
    """A weight of a package."""

    name: str
    stored: str
    """Type of its numbers as they are stored."""
    half: bool
    values: np.ndarray
    """In fp32, decompressed."""
    block: int = 0
    """Weights of a row that share a scale; 0 where there is none."""


def difference(folder: Path, merged: Path) -> str | None:
    """Why the packages of a folder do not have the weights of the merged model, as a clause; None where they have."""
    model, faults = _Merged(ModelFolder(merged)), list[str]()
    try:
        for graph in graphset.read(folder).graphs:
            for weight in weights_of(package.read(folder / graph.file)):
                if fault := _compared(weight, model):
                    faults.append(fault)
    except Unreadable as error:
        return f"its weights are not those of the merge: {error}"
    if not faults:
        return None
    more = f", and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return f"its weights are not those of the merge: {'; '.join(faults[:NAMED])}{more}. So it is damaged, or of another checkpoint"


def weights_of(program: package.Program) -> Iterator[Weight]:
    """The weights of a program, one after the other, whose names say that they were parameters of the model. Raises Unreadable."""
    types = {name: kind.dtype for operator in program.operators for name, kind in operator.outputs}
    inside = {bound for operator in program.operators if operator.kind.startswith(PREFIX) for bounds in operator.inputs.values()
              for bound in bounds if isinstance(bound, str)}  # fmt: skip
    small: dict[str, Any] = {}
    for operator in program.operators:
        if operator.kind != "const" and not operator.kind.startswith(PREFIX):
            continue
        name, kind = operator.outputs[0]
        if name in inside:
            small[name] = constant(operator, small)
        elif name.startswith(_MARK):
            stored = stored_as(operator.inputs[STORED[operator.kind]][0], types) if operator.kind in STORED else kind.dtype
            values = np.asarray(constant(operator, small)).astype(np.float32)
            scales = operator.inputs["scale"][0] if "scale" in operator.inputs else None
            block = 0 if scales is None else values.shape[-1] // _columns(scales, small)
            yield Weight(name, stored, kind.dtype == "float16", values, block)


def _columns(bound: package.Bound, values: Mapping[str, Any]) -> int:
    """The last size of an operator's input."""
    return int((values[bound] if isinstance(bound, str) else bound).shape[-1])


class _Merged:
    """The tensors of the merged model by their names with underscores."""

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        self.names: Mapping[str, str] = {re.sub(r"\W", "_", name).lower(): name for name in folder.headers}

    def named(self, weight: str) -> str | None:
        """The tensor that a weight of a package came from, by its name."""
        plain = re.sub(r"(_(to_fp16|to_fp32|quantized|palettized))+$", "", weight.removeprefix(_MARK)).lower()
        return next((self.names[key] for key in _endings(plain) if key in self.names), None)

    def alike(self, shape: tuple[int, ...]) -> list[str]:
        """The tensors of those sizes."""
        return [name for name, info in self._folder.headers.items() if tuple(info.shape) == shape]

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def values(self, name: str) -> np.ndarray | None:
        """A tensor in fp32; None where it is not of a type that weights have."""
        info = self._folder.headers[name]
        if info.dtype not in _STORED:
            return None
        mapped: np.ndarray = np.memmap(
            self._folder.path / info.file, _STORED[info.dtype], "r", offset=info.start, shape=tuple(info.shape) or (1,)
        )
        return (mapped.astype("<u4") << 16).view("<f4") if info.dtype == "BF16" else mapped.astype(np.float32)


def _endings(name: str) -> Iterator[str]:
    """The name, and what is left of it behind each of its underscores: a program may have the model inside of others."""
    parts = name.split("_")
    return ("_".join(parts[place:]) for place in range(len(parts)))


def _compared(weight: Weight, model: _Merged) -> str | None:
    name = model.named(weight.name)
    if name is not None:
        fault = _beyond(weight, model.values(name))
        return f"{name} {fault}" if fault else None
    if weight.values.ndim != 2:
        return None  # the experts of a mixture are one tensor here and several in the merge; what they give is compared
    # A head that is the table of tokens has the name of either. What has no tensor of its sizes was made by the model's own code.
    alike = model.alike(weight.values.shape)
    if not alike or any(_beyond(weight, model.values(other)) is None for other in alike):
        return None
    return f"{weight.name.removeprefix(_MARK)} is no tensor of the merge"


def _beyond(weight: Weight, exact: np.ndarray | None) -> str | None:
    """How a weight differs from what it should be, as the end of a clause; None where it does not."""
    if exact is None:
        return None
    # GPT-2's linear layers have their weights the other way round, which a square one does not show by its sizes.
    ways = [exact, exact.T] if exact.ndim == 2 else [exact]
    faults = [_apart(weight, way) for way in ways if way.shape == weight.values.shape]
    if not faults:
        return f"has the shape {list(weight.values.shape)} instead of {list(exact.shape)}"
    return None if None in faults else faults[0]


def _apart(weight: Weight, exact: np.ndarray) -> str | None:
    """See `_beyond`, for a tensor of the same sizes."""
    values = weight.values
    if weight.stored.startswith("float"):
        with np.errstate(over="ignore"):
            wanted = exact.astype(np.float16).astype(np.float32) if weight.half else exact
        return None if np.array_equal(values, wanted) else "is not that of the merge"
    rows, wanted = values.reshape(-1, values.shape[-1]), exact.reshape(-1, values.shape[-1])
    beyond = _off_the_grid(weight, rows, wanted) if weight.block else _far(rows, wanted)
    return f"is not that of the merge from row {int(np.argmax(beyond))} of {len(rows)} on" if beyond.any() else None


def _off_the_grid(weight: Weight, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which rows (n,) have a weight that is not the nearest step of its scale."""
    blocks = wanted.reshape(len(wanted), -1, weight.block)
    largest = LARGEST.get(weight.stored, 0) or 1 << 20  # a type that no form has is on no grid
    bound = STEP * np.abs(blocks).max(-1, keepdims=True) / largest + (largest + 1) * _SMALLEST
    return np.asarray(~(np.abs(rows.reshape(blocks.shape) - blocks) <= bound).all((1, 2)))


def _far(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which rows (n,) have a block that loses too much."""
    worst = np.zeros(len(rows), bool)
    for at in range(0, rows.shape[1], BLOCK):
        lost = np.sqrt(np.square(rows[:, at : at + BLOCK] - wanted[:, at : at + BLOCK]).mean(-1))
        worst |= ~(lost <= LOST * np.sqrt(np.square(wanted[:, at : at + BLOCK]).mean(-1)))
    return worst
