"""The options of the section `[gguf]`: imported where a configuration is read."""

from __future__ import annotations

from pydantic import Field

from daemon.contract.values import Frozen


class GgufOptions(Frozen):
    """How GGUF files are made smaller."""

    calibration_samples: int = Field(default=32, ge=0, le=512)
    """Texts by which gguf-q6_k, gguf-q5_k_m and gguf-q4_k_m find out which columns of a matrix count most (llama.cpp's importance matrix).
    0: all columns count the same, which is faster."""
