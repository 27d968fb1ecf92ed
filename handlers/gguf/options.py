"""`[gguf]`: the options of GGUF files. Light: the daemon reads it by way of their declaration.

The docstring of each key becomes its comment in config.toml.
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from daemon.contract.values import Frozen


class GgufOptions(Frozen):
    """How GGUF files are made smaller."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    calibration_samples: int = Field(default=32, ge=0, le=512)
    """Texts by which gguf-q6_k, gguf-q5_k_m and gguf-q4_k_m find out which columns of a matrix count most (llama.cpp's importance matrix).
    0: all columns count the same, which is faster."""
