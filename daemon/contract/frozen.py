"""The base of our models: immutable values with pydantic's validation, which takes longer to import than `ckptd status` may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict

Model = TypeVar("Model", bound=BaseModel)


class Frozen(BaseModel):
    """Immutable, hashable where its fields are, and closed to unknown keys. Its validator is built when it is first needed."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The same with other values, and without what was worked out of this one's (`functools.cached_property`)."""
        return without_derived(super().model_copy(update=update, deep=deep))


def without_derived(copied: Model) -> Model:
    """A copy that pydantic made, without what it took over besides the fields."""
    for name in vars(copied).keys() - type(copied).model_fields.keys():
        del vars(copied)[name]
    return copied
