"""`[static]`: what the formats with fixed sizes share (ExecuTorch, LiteRT, Core ML). Light: the daemon reads it.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from daemon.contract.values import Frozen


class StaticOptions(Frozen):
    """How large the fixed sizes are."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    context_length: int = Field(default=1024, ge=16, le=131072)
    """Tokens that a model for phones and small devices has room for: prompt and answer together, or one text of an encoder. Fewer if the
    model itself knows fewer. The cache has its full size from the start, so that memory and the time of each token grow with it."""
