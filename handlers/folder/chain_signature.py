"""Names of what goes into the graphs of a chain and what comes out.

Used by `handlers.families.chain.family` and its check. Free of torch. Each graph's `next_hidden_states` are the `hidden_states` of
the next one; cache inputs and outputs carry the number of their layer in the whole model, so all pasts of a chain together are those of
one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from handlers.graphs.signature import BATCH, SEQUENCE, CacheLayer, CausalSignature, Ports, Signature

HIDDEN, NEXT = "hidden_states", "next_hidden_states"
EMBEDDING, HEAD = "embedding", "head"
"""Roles of the first and the last graph."""


class BlockSignature(CausalSignature):
    """Some layers of a decoder, with vectors in the place of token ids and logits."""

    READS, GIVES = HIDDEN, NEXT


@dataclass(frozen=True)
class Link:
    """One graph of a chain."""

    role: str
    file: str
    signature: Signature


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
        Link(EMBEDDING, "embedding.onnx", _end("input_ids", NEXT)),
        *blocks,
        Link(HEAD, "head.onnx", _end(HIDDEN, "logits")),
    )


def _end(given: str, made: str) -> Ports:
    """The first or the last graph: one input and one output, both (batch, sequence, …)."""
    return Ports((given,), (made,), {name: {0: BATCH, 1: SEQUENCE} for name in (given, made)})
