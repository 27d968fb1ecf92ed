"""The strategies to export a model, as rows of a table: the settings of each, and what it gives up.

Used by every stage that exports. `handlers.onnx.export` decides which of them are tried and in which order; a new workaround for an
exporter's failure is a new row here, which the diagnoses that it helps with name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.families.base import Axes, Form, Tracing
from handlers.onnx.tracing import exporters

Loss = Literal["opset", "batching", "cache", "dynamic lengths"]

LOSSES: dict[Loss, tuple[str, str]] = {
    "opset": ("the operator set asked for", "another operator set"),
    "batching": ("any number of rows", "one row at a time"),
    "cache": ("a KV cache", "no cache: each new token needs a pass over all tokens"),
    "dynamic lengths": ("any length", "a window of fixed size, padded on the right"),
}
"""Property that a strategy may give up → (what was wanted, what it gives instead)."""

_AXES: dict[Axes, tuple[Loss, ...]] = {
    "all": (), "lengths": ("batching",), "batch": ("dynamic lengths",), "none": ("batching", "dynamic lengths"),
}  # fmt: skip
_OPSETS = (18, 20, 21, 23)
"""Operator sets that runtimes know well, to choose another one from."""


@dataclass(frozen=True)
class Strategy:
    """One way to export."""

    name: str
    export: exporters.Exporter
    attention: str = "eager"
    """transformers' attention implementation that is traced."""
    experts: str | None = None
    """transformers' implementation of mixtures of experts that is traced; a dense model does not take such a strategy."""
    newest_opset: int | None = None
    """The newest operator set that this strategy can write; it replaces a newer one that was asked for, as a recorded fallback."""
    rewrite: str = ""
    """Name in `handlers.onnx.tracing.model_rewrites.REWRITES`: the replacement for code that can't be traced."""
    axes: Axes = "all"
    cache: bool = True
    """Whether a decoder keeps its KV cache."""
    other_opset: bool = False
    """Write the operator set nearest to the one asked for instead of that one."""
    external: bool = False
    """Weights in files of their own, whatever their size."""
    chain: bool = False
    """A chain of graphs, a few layers each, instead of one graph."""

    @property
    def tracing(self) -> Tracing:
        """How the model is prepared."""
        return Tracing(self.attention, self.experts)

    def opset(self, wanted: int) -> int:
        """The operator set that this strategy writes when `wanted` is asked for."""
        if self.other_opset:
            return min((version for version in _OPSETS if version != wanted), key=lambda version: (abs(version - wanted), version))
        return wanted if self.newest_opset is None else min(wanted, self.newest_opset)

    def form(self, wanted: Form) -> Form:
        """The form of the graphs when `wanted` is asked for."""
        return Form(self.axes if self.axes != "all" else wanted.axes, wanted.cache and self.cache)

    def losses(self, opset: int, form: Form) -> tuple[Loss, ...]:
        """What it gives up of what is asked for."""
        given = self.form(form)
        lost: tuple[Loss, ...] = ("opset",) if self.opset(opset) != opset else ()
        lost += _AXES[given.axes] if given.axes != form.axes else ()
        return (*lost, "cache") if given.cache != form.cache else lost


_OLD = exporters.LEGACY_NEWEST_OPSET

# Eager attention first: below opset 23 it traces to fewer nodes than sdpa, and with 23 to as many.
# dynamo-experts looks each token's experts up, so a long prefill needs much memory.
LOSSLESS: tuple[Strategy, ...] = (
    Strategy("dynamo-eager", exporters.dynamo, "eager"),
    Strategy("dynamo-sdpa", exporters.dynamo, "sdpa"),
    Strategy("dynamo-rewritten", exporters.dynamo, "eager", rewrite="masks-and-rotary"),
    Strategy("dynamo-patched", exporters.dynamo, "eager", rewrite="operators"),
    Strategy("legacy-eager", exporters.legacy, "eager", newest_opset=_OLD),
    Strategy("legacy-sdpa", exporters.legacy, "sdpa", newest_opset=_OLD),
    Strategy("legacy-rewritten", exporters.legacy, "eager", newest_opset=_OLD, rewrite="masks-and-rotary"),
    Strategy("dynamo-experts", exporters.dynamo, "eager", experts="batched_mm"),
    Strategy("dynamo-external", exporters.dynamo, "eager", external=True),
)
"""Strategies that give nothing up, except for the opset where the legacy exporter can't write the one asked for."""

STRATEGIES: tuple[Strategy, ...] = (
    *LOSSLESS,
    Strategy("dynamo-opset", exporters.dynamo, "eager", other_opset=True),
    Strategy("dynamo-one-row", exporters.dynamo, "eager", axes="lengths"),
    Strategy("dynamo-no-cache", exporters.dynamo, "eager", cache=False),
    Strategy("legacy-no-cache", exporters.legacy, "eager", newest_opset=_OLD, cache=False),
    Strategy("dynamo-window", exporters.dynamo, "eager", axes="batch", cache=False),
    Strategy("legacy-static", exporters.legacy, "eager", newest_opset=_OLD, axes="none", cache=False, rewrite="masks-and-rotary"),
    Strategy("optimum", exporters.optimum, newest_opset=_OLD),
    Strategy("layers", exporters.dynamo, "eager", chain=True),
)
"""All strategies, in the default order: first those that lose nothing, then those that do; the one that needs an installed toolchain and
the chain come last."""


def named(strategies: Sequence[Strategy], name: str) -> Strategy:
    """The row of that name; Permanent for one that the table does not hold."""
    row = next((strategy for strategy in strategies if strategy.name == name), None)
    if row is None:
        names = ", ".join(strategy.name for strategy in strategies)
        raise Permanent(FaultCode.BAD_OPTION, "choose how to export to ONNX", f"there is no strategy {name}", f"use one of {names}")
    return row


def starting_at(strategies: Sequence[Strategy], name: str) -> tuple[Strategy, ...]:
    """The rows from `name` on; all of them for "default". Permanent for a name that the table does not hold."""
    if name == "default":
        return tuple(strategies)
    return tuple(strategies[strategies.index(named(strategies, name)) :])
