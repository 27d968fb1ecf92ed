"""How a check says which settings are others than they should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NOTHING = object()
"""The value of a setting that is not there."""
NAMED = 3
"""Settings that a sentence names."""


def instead(wrong: Sequence[tuple[str, Any, Any]], most: int = NAMED) -> str:
    """Give (setting, value, value that it should have) of each in words, of the first `most`; "" where there are none."""
    named = ", ".join(f"{key} is {_value(mine)} instead of {_value(theirs)}" for key, mine, theirs in wrong[:most])
    return named + (f", and {len(wrong) - most} more" if len(wrong) > most else "")


def _value(value: Any) -> str:
    return "not set" if value is NOTHING else repr(value)[:80]
