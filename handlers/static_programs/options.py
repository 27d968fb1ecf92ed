"""The options of the section `[static]`: imported where a configuration is read."""

from __future__ import annotations

from pydantic import Field

from daemon.contract.values import Frozen


class StaticOptions(Frozen):
    """How large the fixed sizes are."""

    context_length: int = Field(default=1024, ge=16, le=131072)
    """Tokens that a model for phones and small devices has room for: prompt and answer together, or one text of an encoder. Fewer if the
    model itself knows fewer. The cache has its full size from the start, so that memory and the time of each token grow with it."""
