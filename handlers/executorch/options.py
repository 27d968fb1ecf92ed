"""`[executorch]`: the options of ExecuTorch's formats. Light: the daemon reads it by way of their declaration.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from daemon.contract.values import Frozen


class ExecuTorchOptions(Frozen):
    """How ExecuTorch's programs are made smaller."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    group_size: Literal[32, 64, 128] = 32
    """Weights that share a scale in executorch-8da4w: 32, 64 or 128. Smaller is more exact and larger on disk."""
