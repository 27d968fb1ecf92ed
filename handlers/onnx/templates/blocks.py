"""Makes the graphs of a long chain of those of a short one: a block of layers stands for all blocks with the same kinds of layers.

A chain is divided into an embedding, blocks of a few layers each and a head (`handlers.families.chain`). Of each kind of block the
stand-in has two where the model has two, and these are shown to be the same graph, node for node, with the weights and ports of the one in
the places of those of the other. What does not fit raises NotRepeatableError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from handlers.onnx.templates.layers import MOST
from handlers.onnx.templates.repetition import PORT, NotRepeatableError, Stack, check_plain, counted, kind_of, label_of
from handlers.onnx.templates.sources import Source

Kinds = tuple[int, ...]
"""Of the layers of a block, in order."""


def _divided(kinds: Sequence[int], per_graph: int) -> list[Kinds]:
    return [tuple(kinds[start : start + per_graph]) for start in range(0, len(kinds), per_graph)]


def chosen(kinds: Sequence[int], per_graph: int) -> tuple[int, ...]:
    """Numbers of the layers that stand for all, in order, block by block; () where too few would be spared.

    Of each kind of block the first two are among them.
    """
    kept: list[int] = []
    seen: list[Kinds] = []
    for number, block in enumerate(_divided(kinds, per_graph)):
        if seen.count(block) < 2:
            seen.append(block)
            start = number * per_graph
            kept += range(start, start + len(block))
    return tuple(kept) if len(kept) <= MOST * len(kinds) else ()


@dataclass(frozen=True)
class Blocks:
    """The blocks of a model, and those of its stand-in."""

    stack: Stack
    per_graph: int

    @property
    def stands(self) -> list[int]:
        """For each block of the model, the stand-in's block that is copied for it: the first one of its kind."""
        short = self._short
        return [short.index(block) for block in _divided(self.stack.kinds, self.per_graph)]

    @property
    def alike(self) -> list[tuple[int, int]]:
        """Blocks of the stand-in that are to be shown to be alike: the first of a kind and another one of it."""
        short = self._short
        return [(short.index(block), number) for number, block in enumerate(short) if short.index(block) != number]

    @property
    def _short(self) -> list[Kinds]:
        return _divided([self.stack.kinds[layer] for layer in self.stack.kept], self.per_graph)

    def check_alike(self, blocks: Sequence[tuple[ir.Model, Mapping[str, Source]]]) -> None:
        """NotRepeatableError unless the stand-in's blocks of one kind are the same graph. `blocks`: with the sources of their weights."""
        for first, other in self.alike:
            _check_same(blocks[first], blocks[other], self.stack, (first * self.per_graph, other * self.per_graph))

    def copied(self, number: int, model: ir.Model, sources: Mapping[str, Source]) -> tuple[ir.Model, dict[str, Source]]:
        """Block `number` of the model, as a copy of the stand-in's block `model` that stands for it."""
        made = model.clone()
        there = self.per_graph * number - self.per_graph * self.stands[number]

        def moved(tensor: str) -> str:
            layer = self.stack.number(tensor)
            return self.stack.moved(tensor, layer + there) if layer >= 0 else tensor

        for value in (*made.graph.inputs, *made.graph.outputs):
            if port := PORT.match(value.name or ""):
                value.name = f"{port[1]}.{int(port[2]) + there}.{port[3]}"
        return made, {name: source.renamed(moved) for name, source in sources.items()}


def _check_same(
    block: tuple[ir.Model, Mapping[str, Source]], other: tuple[ir.Model, Mapping[str, Source]], stack: Stack, firsts: tuple[int, int]
) -> None:  # fmt: skip
    """`firsts`: the number of each block's first layer in the stand-in."""
    (model, sources), (like, like_sources) = block, other
    nodes, others = list(model.graph), list(like.graph)
    ports, its_ports = (
        [counted(value.name, first) for values in (graph.inputs, graph.outputs) for value in values]
        for graph, first in zip((model.graph, like.graph), firsts, strict=True)
    )
    if len(nodes) != len(others) or ports != its_ports:
        raise NotRepeatableError("two blocks of the same kind have other nodes or ports")
    same: dict[ir.Value, ir.Value] = {}

    def mine(value: ir.Value | None) -> object:
        return label_of(value, sources, stack, firsts[0])

    def its(value: ir.Value | None) -> object:
        return label_of(value, like_sources, stack, firsts[1])

    for node, twin in zip(nodes, others, strict=True):
        check_plain(node)
        fits = kind_of(node) == kind_of(twin)
        for value, wanted in zip(node.inputs, twin.inputs, strict=True) if fits else ():
            fits = fits and (same[value] is wanted if value is not None and value in same else mine(value) == its(wanted) is not None)
        if not fits:
            raise NotRepeatableError(f"{node.op_type} {node.name} of one block has no like in another of the same kind")
        same.update(zip(node.outputs, twin.outputs, strict=True))
    if any(same.get(value) is not wanted for value, wanted in zip(model.graph.outputs, like.graph.outputs, strict=True)):
        raise NotRepeatableError("two blocks of the same kind have other outputs")
