"""`[pytorch]`: the options of the smaller forms of the PyTorch format. Light: the daemon reads it by way of their declarations.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from daemon.contract.values import Frozen


class PytorchOptions(Frozen):
    """How pytorch-w4a16 is quantized."""

    group_size: Literal[32, 64, 128] = 128
    """Weights that share a scale in pytorch-w4a16: 32, 64 or 128. Smaller is more exact and larger. A layer whose inputs it does not divide
    gets the next smaller one that does."""
    error_correction: bool = True
    """Correct the error of each rounded 4-bit weight in those that are not rounded yet (GPTQ), by what the layers get on the calibration
    texts. Without it weights are rounded to nearest, which is faster and less exact."""
    calibration_samples: int = Field(default=32, ge=1, le=4096)
    """Texts that the error correction measures with. They are never those that artifacts are compared on."""
