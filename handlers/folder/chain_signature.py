"""Names of what goes into the graphs of a chain and what comes out.

Used by `handlers.families.chain.family` and its check. Free of torch. Each graph's `next_hidden_states` are the `hidden_states` of
the next one; cache inputs and outputs carry the number of their layer in the whole model, so all pasts of a chain together are those of
one graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from handlers.graphs.signature import BATCH, PAST, SEQUENCE, TOTAL, CacheLayer, CausalSignature

HIDDEN, NEXT = "hidden_states", "next_hidden_states"
EMBEDDING, HEAD = "embedding", "head"
"""Roles of the first and the last graph."""


@dataclass(frozen=True)
class EndSignature:
    """The first or the last graph: one input and one output, both (batch, sequence, …)."""

    inputs: tuple[str]
    outputs: tuple[str]

    @property
    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Input or output → its dynamic axes by position."""
        return {name: {0: BATCH, 1: SEQUENCE} for name in (*self.inputs, *self.outputs)}


@dataclass(frozen=True)
class BlockSignature(CausalSignature):
    """The layers from number `first` on: as `CausalSignature`, with vectors in the place of token ids and logits."""

    first: int = 0

    @property
    def token_inputs(self) -> tuple[str, ...]:
        """The inputs that are not cache."""
        return (HIDDEN, *super().token_inputs[1:])

    @property
    def past(self) -> tuple[str, ...]:
        """Names of the cache inputs: key and value of each layer in turn."""
        return tuple(f"past_key_values.{self.first + index}.{kind}" for index in range(len(self.layers)) for kind in ("key", "value"))

    @property
    def present(self) -> tuple[str, ...]:
        """Names of the cache outputs, in the order of `past`."""
        return tuple(name.replace("past_key_values.", "present.") for name in self.past)

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs."""
        return (NEXT, *self.present)

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """Input or output → its dynamic axes by position."""
        named = {name: {0: BATCH, 1: SEQUENCE} for name in (*self.token_inputs, NEXT)}
        named["attention_mask"] = {0: BATCH, 1: TOTAL}
        named.update({name: {0: BATCH, 2: PAST} for name in self.past})
        named.update({name: {0: BATCH, 2: TOTAL} for name in self.present})
        return named


@dataclass(frozen=True)
class Link:
    """One graph of a chain."""

    role: str
    file: str
    signature: EndSignature | BlockSignature


_BLOCK = "layers."


def block_role(number: int) -> str:
    """The role of a block of layers."""
    return f"{_BLOCK}{number}"


def block_number(role: str) -> int | None:
    """The number of the block with that role; None for the ends of a chain."""
    return int(role.removeprefix(_BLOCK)) if role.startswith(_BLOCK) else None


def links(layers: Sequence[CacheLayer], per_graph: int, position_ids: bool = True) -> tuple[Link, ...]:
    """The graphs of a chain in order, with `per_graph` layers in each block but perhaps the last."""
    starts = range(0, len(layers), per_graph)
    width = max(2, len(str(len(starts) - 1)))
    blocks = []
    for number, start in enumerate(starts):
        signature = BlockSignature(tuple(layers[start : start + per_graph]), position_ids, start)
        blocks.append(Link(block_role(number), f"layers_{number:0{width}}.onnx", signature))
    return (
        Link(EMBEDDING, "embedding.onnx", EndSignature(("input_ids",), (NEXT,))),
        *blocks,
        Link(HEAD, "head.onnx", EndSignature((HIDDEN,), ("logits",))),
    )
