"""Thresholds that can't distinguish a merged model from an unmerged one, since the adapter changes too little. Pure; called by `build`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.contract.formats.declaration import Thresholds
from daemon.contract.jobs.figures import Likeness


def blindness(adapter: Likeness | None, variants: Iterable[str], thresholds: Mapping[str, Thresholds]) -> str | None:
    """The warning where the bare base meets limits as well. `adapter`: the bare base beside base + adapter; None for a full fine-tune."""
    if adapter is None:
        return None
    blind = [name for name in variants if name in thresholds and _meets(adapter, thresholds[name])]
    if not blind:
        return None
    parts = (
        (adapter.kl, "divergence {:.3g} nats"),
        (adapter.agreement, "agreement {:.3g}"),
        (adapter.error_max, "largest error {:.3g} deviations"),
    )
    effect = ", ".join([text.format(value) for value, text in parts if value is not None][:2])
    return (
        f"The adapter changes the base's outputs so little ({effect}) that the bare base would meet the thresholds of"
        f" {', '.join(blind)} too: for these, passing does not prove the merge."
    )


def _meets(adapter: Likeness, limits: Thresholds) -> bool:
    """Whether figures meet thresholds; one that a task doesn't have decides nothing."""
    agreement, kl, error = adapter.agreement, adapter.kl, adapter.error_max
    if error is None:
        return False
    return (agreement is None or agreement >= limits.agreement) and (kl is None or kl <= limits.kl) and error <= limits.error
