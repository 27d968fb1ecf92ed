"""The weights that OpenVINO's models store in other numbers than fp32: integers with scales and zero points, and halves.

Used by the comparison with the twin. What the numbers mean follows from the operators that lead from them to a product or a table, whose
specification is https://docs.openvino.ai (operation sets: Convert, Subtract, Multiply, Reshape, Transpose, MatMul, Gather): integers,
converted, less their zero points, times their scales, which are those of a row or of a group of its columns. No name is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from handlers.openvino.twin.ir import NIBBLES, TYPES, Layer, Model
from handlers.validate.twins.weights import CUT, SLACK, Part, Scaled, UnreadableError, Use, unpacked

IN_FLOAT = ("f32", "f64")
INTEGERS = ("u8", "i8", *NIBBLES)
_NOT_WEIGHTS = ("i32", "i64", "u64", "u32", "boolean", "string", *IN_FLOAT)
"""Types of constants that are indices, masks or plain numbers."""
_LARGE = 256
"""Elements from which on stored integers are weights."""
_SMALL = 1 << 16
_HALF = 2.0**-11
"""Largest relative error of a number that is stored in half precision."""
CUT_BY_SEARCH = 6.0
"""Steps that the smallest and the largest number of 4 bits may be farther from their weights than where a scale fits them all: nncf's
searched scales are down to about two thirds of those, which leaves 7 of 22 steps out. Measured are up to 3.5 in all."""


@dataclass(frozen=True)
class Compressed(Scaled):
    """Integers whose scales were rounded to halves after the integers had been chosen, by nncf."""

    @property
    def levels(self) -> int:
        """See `Stored.levels`; none of 4 bits: scales that are searched with few texts may be any, up to those of groups of zeros."""
        return 0 if self._searched else super().levels

    @property
    def _searched(self) -> bool:
        return self.range[1] - self.range[0] < 16

    def part(self, rows: slice | np.ndarray) -> Part:
        """See `Stored.part`."""
        part = super().part(rows)
        steps = np.where(part.inside, SLACK, CUT + (CUT_BY_SEARCH if self._searched else 0)) * part.steps
        reach = steps + (_HALF if self.scales is not None and self.scales.dtype == np.float16 else 0) * np.abs(part.values)
        return replace(part, below=reach, above=reach)


def read(path: Path, role: str = "") -> list[Scaled]:
    """The stored weights of a model, each once for each use. Raises UnreadableError where some are not understood."""
    model = Model(path)
    weights: dict[tuple[str, Use], Scaled] = {}
    seen = set[str]()
    for layer in model.layers.values():
        for place, use, turned in _places(model, layer):
            way = _Way(model, layer.inputs[place])
            if (weight := way.weight(use, turned=turned)) is not None:
                weights[way.root, use] = replace(weight, role=role)
                seen |= way.constants
    for own, layer in model.layers.items():
        if layer.kind != "Const" or own in seen or layer.type in _NOT_WEIGHTS or layer.count < _LARGE:
            continue
        if layer.type not in TYPES and layer.type not in NIBBLES:
            raise UnreadableError(f"the constant {layer.name} is stored as {layer.type}, which is not read here")
        if layer.type != "f16":
            raise UnreadableError(f"the stored numbers of {layer.name} are read by operators that are not known here")
    return list(weights.values())


def halves(path: Path) -> Iterator[bytes]:
    """The bytes of each small constant in half precision."""
    model = Model(path)
    for layer in model.layers.values():
        if layer.kind == "Const" and layer.type == "f16" and layer.count <= _SMALL:
            yield model.constant(layer).tobytes()


def _places(model: Model, layer: Layer) -> Iterator[tuple[int, Use, bool]]:
    """Inputs of an operator that a weight may be, what for, and whether its columns are the outputs."""
    if layer.kind == "MatMul":
        yield 0, "product", layer.data.get("transpose_a") == "true"
        yield 1, "product", layer.data.get("transpose_b") != "true"
    elif layer.kind == "Gather" and len(layer.inputs) == 3:
        axis = model.layers[layer.inputs[2]]
        if axis.kind == "Const" and int(model.constant(axis).reshape(-1)[0]) == 0:
            yield 0, "table", False


class _Way:
    """What leads from a constant to where a weight is read."""

    def __init__(self, model: Model, end: str) -> None:
        self._model, self._end = model, end
        self.root = ""
        """Identifier of the constant with the numbers."""
        self.constants = set[str]()
        """Identifiers of all constants that the weight is made of."""

    def weight(self, use: Use, *, turned: bool) -> Scaled | None:
        """The weight; None where it is computed, or in plain fp32."""
        own, moves = self._before(self._end)
        layer = self._model.layers[own]
        scales: np.ndarray | None = None
        zeros: np.ndarray | None = None
        if layer.kind == "Multiply":
            sides = self._sides(layer)
            if sides is None:
                return None
            own, scale = sides
            scales, layer = self._plain(scale), self._model.layers[own]
            if layer.kind == "Subtract":
                zero, (own, between) = self._constant(layer.inputs[1]), self._before(layer.inputs[0])
                if zero is None or between:
                    return None
                zeros, layer = self._plain(zero), self._model.layers[own]
        if layer.kind != "Const" or layer.type not in (*INTEGERS, "f16"):
            return None
        self.root = own
        turned = bool((sum(move.kind == "Transpose" for move in moves) + turned) % 2)
        if scales is None:
            return self._of_halves(layer, use, moves, turned=turned)
        return self._of_integers(layer, scales, zeros, use, moves, turned=turned)

    def _hold(self) -> None:
        self.constants.add(self.root)

    def _before(self, own: str) -> tuple[str, list[Layer]]:
        """The first layer before some that only convert or move numbers, and those that move them, the last first."""
        moves = list[Layer]()
        while (layer := self._model.layers[own]).kind in ("Convert", "Reshape", "Transpose"):
            moves += [layer] if layer.kind != "Convert" else []
            own = layer.inputs[0]
        return own, moves

    def _constant(self, own: str) -> str | None:
        """The constant that a value is, converted or not; None where it is another."""
        own, moves = self._before(own)
        return own if self._model.layers[own].kind == "Const" and not moves else None

    def _sides(self, layer: Layer) -> tuple[str, str] | None:
        """Of a product the integers, and the scale; None where it is no scaling of integers."""
        for side, other in (layer.inputs, layer.inputs[::-1]):
            own, moves = self._before(side)
            scale = self._constant(other)
            first = self._model.layers[own]
            integers = first.kind == "Subtract" or (first.kind == "Const" and first.type in INTEGERS)
            if integers and not moves and scale is not None and self._model.layers[scale].type in ("f16", "f32"):
                return own, scale
        return None

    def _plain(self, own: str) -> np.ndarray:
        """Scales or zero points in their own shape."""
        self.constants.add(own)
        layer = self._model.layers[own]
        numbers = self._model.constant(layer)
        return _wide(numbers, layer) if layer.type in NIBBLES else numbers

    def _of_halves(self, layer: Layer, use: Use, moves: list[Layer], *, turned: bool) -> Scaled | None:
        if layer.type != "f16":
            return None  # integers without a scale, which `read` tells if they are many
        if len(layer.shape) != 2 or any(move.kind == "Reshape" for move in moves):
            raise UnreadableError(f"the weight {layer.name} is no matrix")
        self._hold()
        codes = self._model.constant(layer)
        codes = codes.T if turned else codes
        return Scaled(layer.name, use, codes, codes.shape[1])

    def _of_integers(
        self, layer: Layer, scales: np.ndarray, zeros: np.ndarray | None, use: Use, moves: list[Layer], *, turned: bool
    ) -> Scaled:
        self._hold()
        grid = _Grid.of(layer, scales, [self._target(move) for move in moves if move.kind == "Reshape"])
        if turned == grid.along_columns and scales.size > 1:
            raise UnreadableError(f"the weight {layer.name} is in groups of outputs")
        signed, bits = layer.type.startswith("i"), 4 if layer.type in NIBBLES else 8
        span = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        numbers = self._model.constant(layer)
        packed = layer.type == "u4" and not turned and grid.columns % 2 == 0
        if packed:
            codes, columns = numbers.reshape(grid.rows, grid.columns // 2), grid.columns
        else:
            codes = (_wide(numbers, layer) if layer.type in NIBBLES else numbers).reshape(grid.rows, grid.columns)
            codes = codes.T if turned else codes
            columns = codes.shape[1]
        points = None if zeros is None else grid.placed(zeros, layer, turned=turned)
        return Compressed(
            layer.name, use, codes, columns, grid.placed(scales, layer, turned=turned), points, grid.block, 4 if packed else 8, span
        )

    def _target(self, move: Layer) -> tuple[int, ...]:
        """The shape that a Reshape gives."""
        shape = self._constant(move.inputs[1])
        return () if shape is None else tuple(int(size) for size in self._model.constant(self._model.layers[shape]).reshape(-1))


@dataclass(frozen=True)
class _Grid:
    """Integers as a matrix, and how their scales lie over it."""

    rows: int
    columns: int
    block: int
    """Numbers of a group, in the direction in which there are several; 0 where there is one."""
    along_columns: bool
    """A scale is of a row, or of some columns of it; otherwise of a column, or of some rows of it."""
    shape: tuple[int, int]
    """Of the scales."""

    @classmethod
    def of(cls, layer: Layer, scales: np.ndarray, targets: list[tuple[int, ...]]) -> _Grid:
        """Of (R, C) beside scales (R, 1) or (1, C), of groups of columns (R, G, n) beside (R, G, 1), or of rows (G, n, C) beside (G, 1, C),
        which a Reshape makes a matrix. Raises UnreadableError for others."""
        shape, own = layer.shape, scales.shape
        if len(shape) == 2 and not targets:
            if own in ((shape[0], 1), (1, shape[1])) or scales.size == 1:
                return cls(*shape, 0, own[-1] == 1, (own[0], own[-1]) if scales.size > 1 else (1, 1))
        elif len(shape) == 3 and own == (*shape[:2], 1) and targets == [(shape[0], shape[1] * shape[2])]:
            return cls(shape[0], shape[1] * shape[2], shape[2], True, (shape[0], shape[1]))
        elif len(shape) == 3 and own == (shape[0], 1, shape[2]) and targets == [(shape[0] * shape[1], shape[2])]:
            return cls(shape[0] * shape[1], shape[2], shape[1], False, (shape[0], shape[2]))
        raise UnreadableError(f"the weight {layer.name} is no matrix with a scale for each row or group")

    def placed(self, numbers: np.ndarray, layer: Layer, *, turned: bool) -> np.ndarray:
        """Scales or zero points (R or 1, B), each for a block of columns of the matrix, `turned` where it is."""
        if numbers.size == 1:
            return numbers.reshape(1, 1)
        if numbers.size != self.shape[0] * self.shape[1]:
            raise UnreadableError(f"the zero points of {layer.name} are of another shape than its scales")
        placed = numbers.reshape(self.shape)
        return placed.T if turned else placed


def _wide(packed: np.ndarray, layer: Layer) -> np.ndarray:
    """Numbers of 4 bits in their shape, a byte each."""
    numbers = unpacked(packed.reshape(1, -1), 4).reshape(-1)[: layer.count].reshape(layer.shape)
    return np.where(numbers > 7, numbers.astype(np.int8) - 16, numbers).astype(np.int8) if layer.type == "i4" else numbers
