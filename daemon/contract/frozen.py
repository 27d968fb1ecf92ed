"""The base of our models: immutable values with pydantic's validation, which takes longer to import than `ckptd status` may."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, hashable where its fields are, and closed to unknown keys. Its validator is built when it is first needed."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
