"""Which strategies are tried, and in which order: what may be given up, what the architecture asks for, what worked before.

Called by the onnx stage. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handlers.families.base import Form
from handlers.onnx.export.history import PastExport
from handlers.onnx.tracing.strategies import Loss, Strategy

PERMITTED: Mapping[str, tuple[Loss, ...]] = {
    "conservative": (),
    "balanced": ("opset", "batching"),
    "aggressive": ("opset", "batching", "cache", "dynamic lengths"),
}
"""Profile → what a strategy may give up under it."""

SMALL, LARGE = 1_000_000_000, 8_000_000_000
"""Parameters up to which "auto" gives up anything, and from which it gives up nothing."""


def settled(profile: str, parameters: int) -> str:
    """The profile that "auto" stands for.

    A small model's graph is of use even without its cache, and trying everything takes minutes. A large one is useless without a cache
    or with a small window, and each attempt takes long.
    """
    if profile != "auto":
        return profile
    return "aggressive" if parameters <= SMALL else "balanced" if parameters <= LARGE else "conservative"


def order(
    strategies: Sequence[Strategy],
    profile: str,
    *,
    opset: int,
    form: Form,
    experts: bool,
    external: bool,
    known: PastExport | None,
    wanted: str = "",
) -> tuple[Strategy, ...]:
    """The strategies that `profile` permits, best first: the one that is `wanted`, what worked before, else what the architecture wants,
    else the table's order."""
    permitted = set(PERMITTED[profile])
    allowed = [
        strategy for strategy in strategies if permitted.issuperset(strategy.losses(opset, form)) and not (external and strategy.external)
    ]
    first = [strategy for strategy in allowed if strategy.name == wanted]
    first += [strategy for strategy in allowed if known is not None and strategy.name == known.strategy and strategy not in first]
    first += [strategy for strategy in allowed if experts and strategy.experts and strategy not in first]
    return (*first, *(strategy for strategy in allowed if strategy not in first))
