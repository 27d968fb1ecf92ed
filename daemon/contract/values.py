"""Immutable values and their digest, which the contract and the options are built on. Pure."""

from __future__ import annotations

import hashlib
import json
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
