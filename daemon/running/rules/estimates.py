"""What a stage will need: the plan's formula, corrected by what the same stage really took before.

Pure functions. Called by the runner before a stage is admitted. A formula knows no architecture; after a first run on
this box the peak that was measured for a model of the same size says more than any formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from daemon.contract.formats.stages import ModelSize, StageSpec
from daemon.journal.attempts import Measured

MARGIN = 1.15
"""Over what was measured: allocators and thread timing vary by a few per cent from run to run."""
NEAR = 4.0
"""Models up to this many times larger or smaller teach a formula its factor."""
FEWEST = 3
"""Measurements of other sizes that it takes before the formula is corrected by them."""
LATEST = 5
"""Measurements that count: an upgrade of a library should show soon."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of memory at the peak, bytes written, and what they come from: "formula", "same size" or "similar sizes"."""

    memory: int
    disk: int
    source: str


def estimate(spec: StageSpec, size: ModelSize, measured: Sequence[Measured], dtype: str = "base") -> Estimate:
    """The estimate for a stage on a model of `size`, which the job merges in `dtype`. `measured`: newest first.

    The highest of the latest peaks on the very size counts where there is one; else the highest ratio of peak to formula
    among similar sizes scales the formula. Disk always comes from the formula: what is written follows from the weights.
    """
    memory, disk = spec.memory(size), spec.disk(size.written_in(dtype))
    same = [one.peak for one in measured if one.size == size][:LATEST]
    if same:
        return Estimate(int(MARGIN * max(same)), disk, "same size")
    similar = [one for one in measured if _is_near(one.size, size)][:LATEST]
    if len(similar) >= FEWEST:
        ratio = max(one.peak / max(1, spec.memory(one.size)) for one in similar)
        return Estimate(int(MARGIN * ratio * memory), disk, "similar sizes")
    return Estimate(memory, disk, "formula")


def _is_near(one: ModelSize, other: ModelSize) -> bool:
    low, high = sorted((one.parameters, other.parameters))
    return low > 0 and high <= NEAR * low
