"""The options of the section `[executorch]`: imported where a configuration is read."""

from __future__ import annotations

from typing import Literal

from daemon.contract.values import Frozen


class ExecuTorchOptions(Frozen):
    """How ExecuTorch's programs are made smaller."""

    group_size: Literal[32, 64, 128] = 32
    """Weights that share a scale in executorch-8da4w: 32, 64 or 128. Smaller is more exact and larger on disk."""
