"""How far a language model reaches by its configuration, and where it does something else: behind its window, behind its original length.

Called by the engines of transformers folders, whose configurations have every default. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daemon.contract.values import Frozen

_WINDOWS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size")
"""Names of the number of positions that a layer with local attention sees."""
_LOCAL = frozenset({"sliding_attention", "chunked_attention", "local"})
_VARYING = ("dynamic", "longrope")
"""Scalings of rotary positions whose frequencies depend on how long the text is at each step."""


class Reach(Frozen):
    """Positions at which a model changes what it does."""

    window: int | None = None
    """Positions that its layers with local attention see; None where all see everything."""
    original: int | None = None
    """Positions that it was first trained for, where its rotary positions are scaled beyond; None where they are not."""
    varying: bool = False
    """Its outputs depend on where a text is cut into steps, since its frequencies depend on the length so far."""
    most: int | None = None
    """Positions that it reaches by a scaling that begins behind the last one it names; None where it names all."""


def reach_of(config: Any) -> Reach:
    """Give the reach of a transformers configuration, the one of the text where it has several."""
    rope = _rope(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    last = _number(getattr(config, "max_position_embeddings", None))
    original = _number(rope.get("original_max_position_embeddings")) or _number(getattr(config, "original_max_position_embeddings", None))
    if kind == "dynamic":
        original = original or last
    elif kind in ("default", "linear"):
        original = None
    factor = rope.get("factor")
    stretched = int(last * float(factor)) if kind == "dynamic" and last and isinstance(factor, int | float) else None
    return Reach(window=_window(config), original=original, varying=kind in _VARYING, most=stretched)


def _rope(parameters: object) -> Mapping[str, Any]:
    """Give the parameters of rotary positions; of several for kinds of layers, those that scale."""
    if not isinstance(parameters, Mapping):
        return {}
    nested = [part for part in parameters.values() if isinstance(part, Mapping)]
    scaled = [part for part in nested if part.get("rope_type", "default") != "default"]
    return next(iter(scaled or nested), parameters)


def _window(config: Any) -> int | None:
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if getattr(config, "use_sliding_window", True) is False or (kinds and not _LOCAL & set(kinds)):
        return None
    return next((window for name in _WINDOWS if (window := _number(getattr(config, name, None)))), None)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
