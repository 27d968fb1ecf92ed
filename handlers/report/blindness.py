"""Thresholds that can't tell a merged model from an unmerged one, since the adapter changes too little. Pure; called by `build`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from daemon.contract.formats import Thresholds


def blindness(reference: Mapping[str, Any] | None, variants: Iterable[str], thresholds: Mapping[str, Thresholds]) -> str | None:
    """The warning where the bare base meets limits as well. `reference`: the reference's figures, whose "adapter" compares the bare base
    with base + adapter."""
    adapter = (reference or {}).get("adapter")
    if not isinstance(adapter, dict):
        return None
    blind = [name for name in variants if name in thresholds and _meets(adapter, thresholds[name])]
    if not blind:
        return None
    parts = ("kl", "divergence {:.3g} nats"), ("agreement", "agreement {:.3g}"), ("error_max", "largest error {:.3g} deviations")
    effect = ", ".join([text.format(adapter[name]) for name, text in parts if _is_number(adapter.get(name))][:2])
    return (
        f"The adapter changes the base's outputs so little ({effect}) that the bare base would meet the thresholds of"
        f" {', '.join(blind)} too: for these, passing does not prove the merge."
    )


def _meets(adapter: Mapping[str, Any], limits: Thresholds) -> bool:
    """Whether figures meet thresholds; one that a task doesn't have decides nothing."""
    agreement, kl, error = (float(adapter[name]) if _is_number(adapter.get(name)) else None for name in ("agreement", "kl", "error_max"))
    if error is None:
        return False
    return (agreement is None or agreement >= limits.agreement) and (kl is None or kl <= limits.kl) and error <= limits.error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
