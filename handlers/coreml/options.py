"""The options of the section `[coreml]`: imported where a configuration is read."""

from __future__ import annotations

from typing import Literal

from daemon.contract.values import Frozen


class CoreMlOptions(Frozen):
    """What Core ML's programs compute in, and how they are made smaller."""

    precision: Literal["float16", "float32"] = "float16"
    """What programs compute in: "float16", which the Neural Engine needs, or "float32", which is exact, twice as large and runs on the CPU
    and GPU only. The cache of a language model is in float16 in both cases, since Core ML has no other."""
    block_size: Literal[16, 32, 64, 128] = 32
    """Weights that share a scale in coreml-int4: 16, 32, 64 or 128. Smaller is more exact and larger on disk."""
    palette_rows: Literal[1, 2, 4, 8, 16, 32] = 16
    """Rows of a matrix that share a table of 16 numbers in coreml-palettized: 1, 2, 4, 8, 16 or 32. Fewer are more exact and larger on
    disk."""
