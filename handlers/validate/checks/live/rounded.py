"""What the live model answers with its weights rounded as the merge has to round them: once, to the dtype that is written.

Called by the stage `reference`, as the last thing that is asked of the live model. In a mixture of experts a router chooses among experts:
where two are almost equally good, the last bit of a weight decides, and another expert gives another answer. A sound merge in 16 bits is
then far from the live model at some positions, and near the live model that was rounded so. PEFT merges it here, not ckptd.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import Likeness
from daemon.contract.values import Json
from handlers.validate.arithmetic.comparison import Comparison, in_deviations
from handlers.validate.checks.live.reference import Reference, teacher_forced
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Round

HALVES = ("bfloat16", "float16")
SAME = 0.05
"""Median over the positions of the mean |Δ|, in standard deviations, by which PEFT's merge may differ from the adapter beside the base.
Rounding makes a hundredth; where PEFT merges wrongly, what it gives proves nothing."""
TIES = 0.02
"""Share of positions."""
_NOT_ASKED = "The live model with rounded weights was not asked, so that a merge in 16 bits may fail for experts that are equally good"
_EXPERTS = re.compile(r"(num|n)_.*experts?$|.*num_experts$")


class Beside:
    """An artifact's outputs beside those of the rounded live model.

    Where two experts are equally good to the last bit, any two ways to add up the same numbers may choose otherwise: so the positions with
    the largest errors, TIES of all, are left out of `error_max`. In the divergence they count.
    """

    def __init__(self, subject: ValidatedTask, unit: float) -> None:
        self._comparison, self._unit, self._errors = Comparison(subject.head, subject.thresholds), unit, list[np.ndarray]()

    def add(self, wanted: np.ndarray, logits: np.ndarray, following: list[tuple[int, int]]) -> None:
        """Take in rows (N, V) of one prompt, with the tokens that follow."""
        self._comparison.add(wanted, logits, following)
        self._errors.append(np.abs(wanted - logits).max(axis=-1))

    def figures(self) -> Likeness:
        """Give those of all prompts."""
        largest = float(np.quantile(np.concatenate(self._errors), 1 - TIES, method="lower"))
        return self._comparison.figures(self._unit).plus(error_max=in_deviations(largest, self._unit))


def chooses_experts(config: Json) -> bool:
    """Tell whether a configuration, or a part of it, is of a mixture of experts."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    return any(isinstance(value, int) and value > 1 and _EXPERTS.match(key) for part in parts for key, value in part.items())


def ask(live: EngineWorker, reference: Reference, dtype: str, folder: Path) -> None:
    """Add to the samples and the long text of `reference` what the rounded model answers, in files of `folder`; a warning where PEFT
    can't merge the adapter, or merges another model than the live one. The live model is merged afterwards. Raises WorkerFailed where it is
    lost."""
    samples, long = list(reference.samples), reference.long
    apart = list[np.ndarray]()
    try:
        live.ask(Round(dtype=dtype))
        for number, sample in enumerate(samples):
            path = folder / f"rounded-{number}.npy"
            apart.append(np.abs(teacher_forced(live, sample, path) - np.load(sample.logits)).mean(axis=-1))
            samples[number] = replace(sample, rounded=path)
        if long is not None:
            path = folder / "rounded-long.npy"
            live.ask(long.asked(path, long.pieces))
            long = replace(long, rounded=path)
    except WorkerFailed as error:
        if error.transient:
            raise
        reference.warnings.append(f"{_NOT_ASKED}: {error.cause}.")
        return
    if in_deviations(float(np.median(np.concatenate(apart))), reference.logit_std) > SAME:
        reference.warnings.append(f"{_NOT_ASKED}: PEFT's merge gives another model than the adapter beside the base.")
        return
    reference.samples, reference.long = samples, long
