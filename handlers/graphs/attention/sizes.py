"""Values that several layers read, made once in a graph: the sizes of its inputs, and constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from handlers.graphs.attention.replacing import PREFIX, constant


@dataclass
class Sizes:
    """Sizes of the inputs of a graph. B batch, S new tokens, T all tokens."""

    graph: ir.Graph
    new: ir.Value
    """(B, S) or (B, S, hidden size): token ids, or hidden states."""
    mask: ir.Value
    """(B, T)"""
    _known: dict[str, ir.Value] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[Tape], ir.Value]) -> ir.Value:
        """Return a value of the graph that is made when it is first asked for."""
        if name not in self._known:
            self._known[name] = make(Tape(self.graph))
            self._known[name].name = f"{PREFIX}.{name}"
        return self._known[name]

    def constant(self, *numbers: float, dtype: Any = np.int64) -> ir.Value:
        """Return a constant (n,)."""
        return constant(self.graph, *numbers, dtype=dtype)

    @property
    def batch(self) -> ir.Value:
        """(1,): B."""
        return self._axis("batch", self.new, 0)

    @property
    def tokens(self) -> ir.Value:
        """(1,): S."""
        return self._axis("tokens", self.new, 1)

    @property
    def total(self) -> ir.Value:
        """(1,): T."""
        return self._axis("total", self.mask, 1)

    @property
    def past(self) -> ir.Value:
        """(1,): tokens in the cache, T − S."""
        return self.once("past", lambda tape: tape.op("Sub", [self.total, self.tokens]))

    @property
    def total_int32(self) -> ir.Value:
        """(1,), int32."""
        return self.once("total_int32", lambda tape: tape.op("Cast", [self.total], {"to": ir.DataType.INT32}))

    @property
    def last(self) -> ir.Value:
        """(B,), int32: number of each row's last token. Padding counts, since the mask hides it."""

        def make(tape: Tape) -> ir.Value:
            return tape.op("Expand", [tape.op("Sub", [self.total_int32, self.constant(1, dtype=np.int32)]), self.batch])

        return self.once("last", make)

    @property
    def one_by_one(self) -> ir.Value:
        """(), bool: whether there is one row, or one new token in each, or nothing in the cache."""

        def make(tape: Tape) -> ir.Value:
            unit = self.constant(1)
            few = tape.op("Or", [tape.op("Equal", [self.batch, unit]), tape.op("Equal", [self.tokens, unit])])
            return tape.op("Squeeze", [tape.op("Or", [few, tape.op("Equal", [self.past, self.constant(0)])])])

        return self.once("one_by_one", make)

    @property
    def rows(self) -> ir.Value:
        """(B, S), int64: 0, 1, … B · S − 1."""

        def make(tape: Tape) -> ir.Value:
            shape = tape.op("Concat", [self.batch, self.tokens], {"axis": 0})
            first, step = (self.once(f"scalar_{number}", _squeezed(self.constant(number))) for number in (0, 1))
            return tape.op("Reshape", [tape.op("Range", [first, tape.op("ReduceProd", [shape], {"keepdims": 0}), step]), shape])

        return self.once("rows", make)

    def _axis(self, name: str, value: ir.Value, axis: int) -> ir.Value:
        return self.once(name, lambda tape: tape.op("Shape", [value], {"start": axis, "end": axis + 1}))


def _squeezed(value: ir.Value) -> Callable[[Tape], ir.Value]:
    return lambda tape: tape.op("Squeeze", [value])
