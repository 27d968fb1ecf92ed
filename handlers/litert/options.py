"""The options of the section `[litert]`: imported where a configuration is read."""

from __future__ import annotations

from typing import Literal

from daemon.contract.values import Frozen


class LiteRtOptions(Frozen):
    """How LiteRT's models are made smaller."""

    block_size: Literal[32, 64, 128, 256] = 32
    """Weights that share a scale in litert-int4: 32, 64, 128 or 256. Smaller is more exact and larger on disk."""
