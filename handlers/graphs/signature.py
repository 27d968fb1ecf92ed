"""The names of a graph's inputs, outputs and axes.

Used by the exporters, the graph's finish and its check. Free of torch, so that light readers can use it too.
The names are those that the ecosystem's runtimes look for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

BATCH, SEQUENCE, PAST, TOTAL = "batch", "sequence", "past", "total"
"""Axes: prompts, new tokens, tokens already in the cache, past + sequence."""


class Signature(Protocol):
    """What goes into a graph and what comes out, in order."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all inputs."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of all outputs."""

    @property
    def axes(self) -> Mapping[str, Mapping[int, str]]:
        """Input or output → its dynamic axes by position."""


@dataclass(frozen=True)
class Ports:
    """A signature as it is written down."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class CacheLayer:
    """Sizes of one layer's cache: keys are (batch, heads, length, key_size), values (batch, heads, length, value_size)."""

    heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True)
class CausalSignature:
    """Inputs and outputs of one graph of a decoder-only model with KV cache."""

    READS: ClassVar[str] = "input_ids"
    GIVES: ClassVar[str] = "logits"
    """The first input and the first output, (batch, sequence, …)."""

    layers: tuple[CacheLayer, ...]
    position_ids: bool = True
    """Whether the architecture takes position_ids; some derive positions from the mask alone."""
    first: int = 0
    """Number of the first layer in the whole model."""
    batches: bool = True
    """Whether the graph takes any number of rows; else one."""

    @property
    def token_inputs(self) -> tuple[str, ...]:
        """The inputs that are not cache."""
        return (self.READS, "attention_mask", *(("position_ids",) if self.position_ids else ()))

    @property
    def past(self) -> tuple[str, ...]:
        """Names of the cache inputs: key and value of each layer in turn."""
        return tuple(f"past_key_values.{self.first + index}.{kind}" for index in range(len(self.layers)) for kind in ("key", "value"))

    @property
    def present(self) -> tuple[str, ...]:
        """Names of the cache outputs, in the order of `past`."""
        return tuple(name.replace("past_key_values.", "present.") for name in self.past)

    @property
    def inputs(self) -> tuple[str, ...]:
        """All inputs."""
        return (*self.token_inputs, *self.past)

    @property
    def outputs(self) -> tuple[str, ...]:
        """All outputs."""
        return (self.GIVES, *self.present)

    @property
    def cache_sizes(self) -> tuple[tuple[int, int], ...]:
        """(heads, size) of each cache tensor, in the order of `past`."""
        return tuple(pair for layer in self.layers for pair in ((layer.heads, layer.key_size), (layer.heads, layer.value_size)))

    @property
    def axes(self) -> dict[str, dict[int, str]]:
        """Input or output → its dynamic axes by position."""
        rows = {0: BATCH} if self.batches else {}
        named = {name: {**rows, 1: SEQUENCE} for name in (*self.token_inputs, self.GIVES)}
        named["attention_mask"] = {**rows, 1: TOTAL}
        named.update({name: {**rows, 2: PAST} for name in self.past})
        named.update({name: {**rows, 2: TOTAL} for name in self.present})
        return named
