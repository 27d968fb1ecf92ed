"""What a stage will need: the plan's formula, corrected by what the same stage really took before.

Pure functions. Called by the runner before a stage is admitted. A formula knows no architecture; after a first run on
this box the peak that was measured for a model of the same size says more than any formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daemon.contract import units
from daemon.contract.formats.stages import LAYER_BY_LAYER, WITHOUT_TWIN, ModelSize, StageSpec
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
    """Bytes of memory at the peak, bytes written, and what they come from: "formula", "same size", "similar sizes" or "layers"."""

    memory: int
    disk: int
    source: str
    strategy: str = "default"
    """How the stage has to run to need no more."""
    remark: str = ""
    """What else to say where it is too much, as a clause."""


def estimate(spec: StageSpec, size: ModelSize, measured: Sequence[Measured], dtype: str = "base") -> Estimate:
    """The estimate for a stage on a model of `size`, which the job merges in `dtype`. `measured`: newest first.

    The highest of the latest peaks on the very size counts where there is one; else the highest ratio of peak to formula
    among similar sizes scales the formula. Disk always comes from the formula: what is written follows from the weights.
    """
    memory, disk = spec.memory(size), spec.disk(size.written_in(dtype))
    same = [sample.peak for sample in measured if sample.size == size][:LATEST]
    if same:
        return Estimate(int(MARGIN * max(same)), disk, "same size")
    similar = [sample for sample in measured if _is_near(sample.size, size)][:LATEST]
    if len(similar) >= FEWEST:
        ratio = max(sample.peak / max(1, spec.memory(sample.size)) for sample in similar)
        return Estimate(int(MARGIN * ratio * memory), disk, "similar sizes")
    return Estimate(memory, disk, "formula")


def by_layers(spec: StageSpec, whole: Estimate, allowed: int, layers: int | str) -> Estimate:
    """What a stage needs that could hold its model whole only with more than the `allowed` bytes of memory.

    `layers`: bytes that it takes beside libraries and outputs to hold one layer at a time, or why that can't be, as a clause. What was
    measured before plays no part: it was another way to run. The answer is `whole`, with a remark, where that does not fit either.
    """
    if isinstance(layers, str):
        return replace(whole, remark=f"it can't be run layer by layer, because {layers}")
    memory = spec.memory_fixed + layers
    if memory > allowed:
        return replace(whole, remark=f"layer by layer it would need about {units.size(memory)}")
    return Estimate(memory, whole.disk, "layers", LAYER_BY_LAYER)


def without_twin(spec: StageSpec, whole: Estimate, size: ModelSize) -> Estimate:
    """What a check needs that leaves out the comparison with its twin; the same where it has none. By the formula alone, as `by_layers`."""
    if spec.shortened is None:
        return whole
    fixed, share = spec.shortened
    short = replace(spec, memory_fixed=fixed, memory_fp32=share)
    return Estimate(short.memory(size), whole.disk, "formula", WITHOUT_TWIN)


def _is_near(size: ModelSize, other: ModelSize) -> bool:
    low, high = sorted((size.parameters, other.parameters))
    return low > 0 and high <= NEAR * low
