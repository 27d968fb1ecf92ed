"""The choice of bits in words. Pure; called by the stage `onnx-mixed`."""

from __future__ import annotations

from handlers.onnx.mixed.search import LEVELS, Choice

MOST_NAMED = 4
"""Layers that a sentence names."""


def summarize(choice: Choice) -> str:
    """What was kept more exact, and why, in a sentence; "" where nothing was."""
    parts = [f"{listed(names)} in {'fp32' if bits == LEVELS[-1] else f'{bits} bits'}" for bits, names in choice.raised.items() if names]
    if not parts:
        return ""
    total = sum(choice.sensitivity.values())
    kept = [name for names in choice.raised.values() for name in names]
    share = sum(choice.sensitivity.get(name, 0.0) for name in kept) / total if total else 0.0
    why = f", which cost {share:.0%} of the divergence in 4 bits" if len(kept) < len(choice.bits) and share else ""
    return f"It keeps {' and '.join(parts)}{why} ({choice.lowest:.2g} nats with 4 bits everywhere, {choice.divergence:.2g} so)."


def listed(names: list[str]) -> str:
    """Some names in a sentence; layers with one word before their numbers."""
    layers = [name.removeprefix("layer ") for name in names if name.startswith("layer ")]
    others = [name for name in names if not name.startswith("layer ")]
    shown = sorted(layers, key=int)
    if len(shown) > MOST_NAMED:
        numbered = [f"{len(shown)} layers ({', '.join(shown[:MOST_NAMED])}, …)"]
    else:
        numbered = [f"layer{'s' if len(shown) > 1 else ''} {', '.join(shown)}"] if shown else []
    parts = [*numbered, *others[:MOST_NAMED], *([f"{len(others) - MOST_NAMED} more"] if len(others) > MOST_NAMED else [])]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
