"""Immutable values and their digest, which the contract and the options are built on. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, hashable where its fields are, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def digest_of(value: Any) -> str:
    """SHA-256, in hex, of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
