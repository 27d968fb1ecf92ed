"""Which of an export's artifacts is the fastest, the smallest, the nearest to the live model, and what speaks for each. Pure.

Called by `handlers.report.advice.headline` and `handlers.report.advice.targets`, whose rules docs/validation.md tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from daemon.contract import units
from daemon.contract.advice import merits as words
from daemon.contract.advice.paired import Difference, difference
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.plan import find_variant
from daemon.contract.language.catalog import translated
from handlers.report.model import Artifact

USABLE = ("alone", "at its targets")
"""How artifacts are put to use that a target may be given."""
NEAR = 0.1
"""Share by which speeds, or sizes, may differ and count as equal: repeated measurements differ by as much."""
SLOWER = 0.5
"""Share of the fastest one's speed, in the middle of the turns, below which no turn makes another one as fast."""
BUSY = 3.0
"""Ratio of the fastest to the slowest turn above which no one figure says how fast it is: other work took the processor."""
SAME_SIZE = 0.05
"""Share by which sizes may differ for the smaller one to be no reason to choose it."""


def deploys(artifact: Artifact) -> str:
    """How the artifact is put to use, "not" where it may not be recommended: only what was compared and passed may be."""
    figures, variant = artifact.measured, find_variant(artifact.variant)
    compared = figures.agreement is not None or figures.error_max is not None
    if variant is None or artifact.verdict is not Verdict.PASSED or not artifact.published or not compared:
        return "not"
    return variant.deploys


def fastest(usable: Sequence[Artifact]) -> Artifact | None:
    """Of the fastest and those near to it, the nearest to the live model; None where no speed was measured."""
    candidates = about_as_fast(usable)
    return nearest(candidates) if candidates else None


def about_as_fast(usable: Sequence[Artifact]) -> list[Artifact]:
    """The fastest and those near to it; [] where no speed was measured.

    Compared is the speed over PyTorch's, which ran in turns with each of them: tokens a second were measured at other times. Near is also
    what was in one of its turns as fast as the fastest in one of its own, and not below `SLOWER`: on a busy machine no more is known.
    """
    speeds = {artifact.variant: speed for artifact in usable if (speed := over_pytorch(artifact))}
    if not any(artifact.measured.speed_over_pytorch for artifact in usable):
        speeds = {artifact.variant: speed for artifact in usable if (speed := artifact.measured.tokens_per_second)}
    if not speeds:
        return []
    timed = [artifact for artifact in usable if artifact.variant in speeds]
    best = max(timed, key=lambda artifact: speeds[artifact.variant])
    bound = min((1 - NEAR) * speeds[best.variant], _range(best, speeds)[0])
    able = [artifact for artifact in timed if artifact is best or speeds[artifact.variant] >= SLOWER * speeds[best.variant]]
    return [artifact for artifact in able if _range(artifact, speeds)[1] >= bound]


def _range(artifact: Artifact, speeds: dict[str, float]) -> tuple[float, float]:
    """The speeds of its turns, at least its own one."""
    speed = speeds[artifact.variant]
    turns = artifact.measured.speed_over_pytorch_range if artifact.measured.speed_over_pytorch else None
    return turns or (speed, speed)


def uncertain(artifact: Artifact) -> bool:
    """Whether its turns beside PyTorch gave speeds that are not near each other."""
    turns = artifact.measured.speed_over_pytorch_range
    return turns is not None and turns[0] < (1 - NEAR) * turns[1]


def over_pytorch(artifact: Artifact) -> float | None:
    """The merged model in PyTorch is what the others are measured against."""
    return artifact.measured.speed_over_pytorch or (1.0 if is_merged(artifact) and artifact.measured.tokens_per_second else None)


def is_merged(artifact: Artifact) -> bool:
    """Whether it is the merged model in PyTorch."""
    variant = find_variant(artifact.variant)
    return variant is not None and "merged" in variant.traits


def smallest(usable: Sequence[Artifact]) -> Artifact | None:
    """Of the smallest and those near to it, the nearest to the live model; None where no size is known."""
    sizes = {artifact.variant: float(size) for artifact in usable if (size := artifact.size_bytes)}
    small = [artifact for artifact in usable if sizes.get(artifact.variant, math.inf) <= (1 + NEAR) * min(sizes.values())]
    return nearest(small) if small else None


def about_as_small(artifact: Artifact, smallest: Artifact) -> bool:
    """Whether nobody would take the smallest instead of another artifact that is recommended, for its size."""
    return artifact is not smallest and (artifact.size_bytes or math.inf) * (1 - SAME_SIZE) <= (smallest.size_bytes or 0)


def nearest(usable: Sequence[Artifact]) -> Artifact:
    """The nearest to the live model: of those that are not shown to be farther than the one with the least loss, the smallest."""
    least = min(usable, key=loss)
    alike = [artifact for artifact in usable if artifact is least or not is_farther(artifact, least)]
    return min(alike, key=lambda artifact: (artifact.size_bytes or math.inf, loss(artifact)))


def is_farther(artifact: Artifact, other: Artifact) -> bool:
    """Whether it is farther from the live model than another: whether the paired interval says so."""
    between = apart(other, artifact)
    return between is not None and between.sure and between.value > 0


def apart(artifact: Artifact, other: Artifact) -> Difference | None:
    """How much farther `other` is from the live model: divergence where the task has one, else the mean error; None where that is not known
    text by text, as in what an earlier version checked."""
    mine, theirs = artifact.measured.by_text or {}, other.measured.by_text or {}
    figure = next((name for name in ("kl", "error") if name in mine and name in theirs), None)
    return difference(figure, mine[figure], theirs[figure]) if figure else None


def loss(artifact: Artifact) -> tuple[float, float, float]:
    """How far it is from the live model, as measured, then its size: divergence where the task has one, else the largest error."""
    figures = artifact.measured
    error = figures.error_max if figures.error_max is not None else float("inf")
    return (figures.kl if figures.kl is not None else error, error, artifact.size_bytes or float("inf"))


def merits(artifact: Artifact, *, speed: bool = True) -> list[str]:
    """What speaks for it, as far as it was measured. `speed`: on this machine's processor."""
    figures, merits = artifact.measured, list[str]()
    variant = find_variant(artifact.variant)
    if speed and figures.speed_over_pytorch is not None and not is_merged(artifact):
        times, turns = units.times(figures.speed_over_pytorch), figures.speed_over_pytorch_range
        if turns and uncertain(artifact):
            words_of_speed = words.BUSY if turns[1] > BUSY * turns[0] else words.AS_FAST_IN_TURNS
            merits.append(translated(words_of_speed).format(speed=times, turns=units.span(turns, units.ratio)))
        else:
            merits.append(translated(words.AS_FAST).format(speed=times))
    if figures.agreement is not None:
        merits.append(translated(words.AGREES).format(share=units.percent(figures.agreement)))
    elif figures.error_max is not None:
        merits.append(translated(words.ERROR).format(error=units.number(figures.error_max)))
    if artifact.size_bytes is not None:
        size, ratio = units.size(artifact.size_bytes), artifact.size_ratio
        merits.append(size if ratio is None else translated(words.SIZE_OF_BASE).format(size=size, ratio=units.times(ratio)))
    if variant is not None and variant.deploys == "over its base":
        merits.append(translated(words.NEEDS_BASE))
    return merits
