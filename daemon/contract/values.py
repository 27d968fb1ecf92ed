"""Immutable values and their digest, which the contract and the options are built on. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

Json: TypeAlias = Mapping[str, Any]
"""A JSON object whose keys others decide: a configuration, a trainer's state, the file of a tokenizer. It is read, never changed."""


class Frozen(BaseModel):
    """Immutable, hashable where its fields are, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def digest_of(value: Any) -> str:
    """SHA-256, in hex, of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def value_at(value: Any, *names: str) -> Any:
    """What lies at the keys of nested JSON objects; None where one of them is missing, or is no object."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text_at(value: Any, *names: str) -> str | None:
    """The text there; None for anything else."""
    entry = value_at(value, *names)
    return entry if isinstance(entry, str) else None


def number_at(value: Any, *names: str) -> float | None:
    """The finite number there; None for anything else."""
    entry = value_at(value, *names)
    if not isinstance(entry, int | float) or isinstance(entry, bool):
        return None
    try:
        number = float(entry)
    except OverflowError:  # a whole number may have any number of digits
        return None
    return number if math.isfinite(number) else None


def whole_at(value: Any, *names: str) -> int | None:
    """The whole number there; None for anything else."""
    entry = value_at(value, *names)
    return entry if isinstance(entry, int) and not isinstance(entry, bool) else None
