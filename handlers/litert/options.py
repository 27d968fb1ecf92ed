"""`[litert]`: the options of LiteRT's formats. Light: the daemon reads it by way of their declaration.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from daemon.contract.values import Frozen


class LiteRtOptions(Frozen):
    """How LiteRT's models are made smaller."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    block_size: Literal[32, 64, 128, 256] = 32
    """Weights that share a scale in litert-int4: 32, 64, 128 or 256. Smaller is more exact and larger on disk."""
