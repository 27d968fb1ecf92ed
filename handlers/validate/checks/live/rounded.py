"""What the merged model has to answer: what the live model does once PEFT has merged it, each weight rounded once as it is stored.

Called by the stage `reference`, as the last thing that is asked of the live model. Beside the live model as it is, a merge in 16 bits has
room for its rounding, in which a faulty one can hide. That rounding is known, so beside this model there is no such room. PEFT merges it
here, not ckptd. In a mixture of experts a router chooses among experts: where two are almost equally good, the last bit of a weight
decides, and another expert gives another answer; all artifacts are judged beside this model too there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import Likeness
from daemon.contract.models.safetensors import read_header
from daemon.contract.values import Json
from handlers.models.folder import ModelFolder
from handlers.validate import findings
from handlers.validate.arithmetic.comparison import Comparison, in_deviations
from handlers.validate.arithmetic.fine_tuning import FineTuning
from handlers.validate.checks.live.foresight import Progress, of_passes
from handlers.validate.checks.live.reference import Reference, teacher_forced
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.findings import Finding
from handlers.validate.length.measuring import ties
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Load, Merge, Rebase, Round

HALVES = ("bfloat16", "float16")
SAME = 1e-3
"""Median over a text's positions of the mean |Δ|, in standard deviations, by which PEFT's merge in fp32 may differ from the adapter beside
the base. Sums in another order make a thousandth of it; where PEFT merges wrongly, what it gives proves nothing."""
SAME_IN_HALVES = 0.05
"""The same of what PEFT merges in 16 bits. Rounding makes a hundredth."""
FAITHFUL = 0.003
"""Largest |Δ|, in standard deviations, of a merge from PEFT's own, but for the few positions that the last bit of a weight may decide. Of
about 45 sound merges in bf16 and fp16, by LoRA, DoRA and other methods, all but one had 0, and that one 0.0004; in fp32 0.00002."""
TIES = 0.02
"""Share of positions."""
_NOT_ASKED = "The live model with rounded weights was not asked, so that a merge in 16 bits may fail for experts that are equally good"
_EXPERTS = re.compile(r"(num|n)_.*experts?$|.*num_experts$")
_LOW_RANK = ("LORA", "ADALORA")
_PLAIN = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it is."""


@dataclass(frozen=True)
class Merging:
    """What was merged."""

    pin: Path
    base: ModelFolder | None
    """None for a whole fine-tune."""
    merged: ModelFolder
    values: str = "original"
    """What `merge.base` comes to."""

    @property
    def in_halves(self) -> bool:
        """Whether any of its weights is stored in 16 bits."""
        return any(info.dtype in ("F16", "BF16") for info in self.merged.headers.values())

    @property
    def experts(self) -> bool:
        """Whether the last bit of a weight may choose an expert, since weights were rounded."""
        return self.base is not None and self.merged.main_dtype in HALVES and chooses_experts(self.merged.config)

    @property
    def halves(self) -> str | None:
        """The 16 bits in which both base and merged model are stored; None where they are not, or nobody knows."""
        if self.base is None or self.base.pickled or self.base.setting("quantization_config"):
            return None
        return self.base.main_dtype if self.base.main_dtype in HALVES and self.base.main_dtype == self.merged.main_dtype else None

    @property
    def by_peft(self) -> bool:
        """Whether such an adapter is merged by PEFT in the base's own dtype, which rounds as it goes."""
        path = self.pin / "adapter_config.json"
        config = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        pickled = self.base is not None and self.base.pickled
        return pickled or config.get("peft_type") not in _LOW_RANK or config.get("init_lora_weights") not in _PLAIN

    @property
    def either(self) -> bool:
        """Whether it may be merged in two ways, which are as right: by PEFT in the base's own 16 bits, where it rounds deltas of stacked
        experts too, or without it, where the sum alone is rounded."""
        path = self.pin / "adapter_model.safetensors"
        return self.experts and not self.by_peft and (not path.is_file() or any(".experts" in key for key in read_header(path)))

    @property
    def unsure(self) -> bool:
        """Whether it is not known to the last bit what is merged: of a base in 4 bits with scales of scales, bitsandbytes takes one of 500
        scales otherwise on a CPU than on a GPU; of stacked experts, PEFT may have rounded to other 16 bits than the merge has."""
        narrow = self.base is not None and (self.base.pickled or self.base.main_dtype in HALVES)
        return self.values == "dequantized-double" or (self.either and self.halves is None and narrow)


class OfPeft:
    """The merged model beside what it has to answer."""

    def __init__(self, unit: float) -> None:
        self._unit, self._errors = unit, dict[int, list[np.ndarray]]()

    def add(self, rows: np.ndarray, *wanted: np.ndarray) -> None:
        """Take in the rows of one prompt. `wanted`: in each way in which the merge may be made."""
        for way, right in enumerate(wanted):
            self._errors.setdefault(way, []).append(np.abs(right - rows).reshape(len(rows), -1).max(axis=-1))

    @property
    def error(self) -> float:
        """Largest |Δ| in standard deviations, in the nearest way, but for the positions that the last bit of a weight may decide."""
        ways = (np.sort(np.concatenate(errors)) for errors in self._errors.values())
        return in_deviations(min(float(errors[len(errors) - 1 - ties(len(errors))]) for errors in ways), self._unit)

    def finding(self) -> Finding | None:
        """Say that it is another merge; None where it is PEFT's."""
        if self.error <= FAITHFUL:
            return None
        return findings.merge(
            "the merge is not the one that PEFT makes of this base and adapter: beside that, with each weight rounded once to the dtype"
            f" in which it is stored, its largest error is {self.error:.3g} standard deviations, above the limit {FAITHFUL:g}"
        )


class Beside:
    """An artifact's outputs beside those of the rounded live model.

    Where two experts are equally good to the last bit, any two ways to add up the same numbers may choose otherwise: so the positions with
    the largest errors, TIES of all, are left out of `error_max`. In the divergence they count.
    """

    def __init__(self, subject: ValidatedTask, unit: float) -> None:
        self._comparison, self._unit, self._errors = Comparison(subject.head, subject.thresholds), unit, list[np.ndarray]()
        self.tuned = FineTuning(subject.head)
        """How much of the fine-tuning is there, with the rounded live model as all of it."""

    def add(self, wanted: np.ndarray, logits: np.ndarray, following: list[tuple[int, int]], *, same_text: bool = False) -> None:
        """Take in rows (N, V) of one prompt, with the tokens that follow; `same_text`: of the text that the one before is of too."""
        self._comparison.add(wanted, logits, following, same_text=same_text)
        self._errors.append(np.abs(wanted - logits).max(axis=-1))

    def figures(self) -> Likeness:
        """Give those of all prompts."""
        largest = float(np.quantile(np.concatenate(self._errors), 1 - TIES, method="lower"))
        return self._comparison.figures(self._unit).plus(error_max=in_deviations(largest, self._unit))

    def by_limit(self) -> dict[str, list[tuple[float, float]]]:
        """Give, by limit, the sum and weight of each text; none of `error`, of which some may be beyond it."""
        sums = {limit: texts for limit, texts in self._comparison.by_limit().items() if limit != "error"}
        return sums | self.tuned.by_limit()


def chooses_experts(config: Json) -> bool:
    """Tell whether a configuration, or a part of it, is of a mixture of experts."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    return any(isinstance(value, int) and value > 1 and _EXPERTS.match(key) for part in parts for key, value in part.items())


def ask(live: EngineWorker, reference: Reference, merging: Merging, folder: Path, progress: Progress) -> None:
    """Add to the samples of `reference`, of experts to the long text too, what the merged model has to answer, in files of `folder`.

    Nothing is added where PEFT can't merge the adapter, or merges another model than the live one; of experts a warning says so. The live
    model is merged afterwards. Raises WorkerFailed where it is lost.
    """
    if merging.base is None or (merging.unsure and not merging.experts):
        return
    packed = merging.base.setting("quantization_config") is not None
    if not merging.in_halves and not packed:
        reference.samples = [replace(sample, merged=sample.logits) for sample in reference.samples]
        return
    if merging.by_peft and merging.halves is None:
        return
    warnings, obstacle = list[str](), "the base is stored quantized" if packed else None
    try:
        if obstacle is None and not _asked(live, reference, merging, folder, progress):
            warnings.append(f"{_NOT_ASKED}: PEFT's merge gives another model than the adapter beside the base.")
    except WorkerFailed as error:
        if error.transient:
            raise
        obstacle = error.cause
    if obstacle is not None:
        warnings.append(f"{_NOT_ASKED}: {obstacle}.")
    reference.warnings += warnings if merging.experts else []


def _asked(live: EngineWorker, reference: Reference, merging: Merging, folder: Path, progress: Progress) -> bool:
    """Ask the merged model; tell whether it is the live one, as far as a text says, so that it was asked."""
    either = merging.either and merging.halves is not None
    answers = _merged(live, reference, merging, folder / "merged", progress, whole=either or merging.by_peft)
    if answers is None:
        return False
    if merging.experts:
        reference.samples = [replace(sample, rounded=path) for sample, path in zip(reference.samples, answers, strict=True)]
        if (long := reference.long) is not None:
            path = folder / "merged-long.npy"
            live.ask(long.asked(path, long.pieces))
            reference.long = replace(long, rounded=path)
    if merging.unsure:
        return True
    once: Sequence[Path | None] | None = None
    if either:
        live.ask(Load())
        if merging.values != "original":
            live.ask(Rebase(values=merging.values))
        once = _merged(live, reference, merging, folder / "once", progress, whole=False)
    ways = zip(reference.samples, answers, once or [None] * len(answers), strict=True)
    reference.samples = [replace(sample, merged=path, once=other) for sample, path, other in ways]
    return True


def _merged(
    live: EngineWorker, reference: Reference, merging: Merging, stem: Path, progress: Progress, *, whole: bool
) -> list[Path] | None:
    """Give the files of what the model answers to the samples once PEFT has merged it; None where that is another model. `whole`: as PEFT
    merges a base that is loaded in its own 16 bits."""
    first, paths = reference.samples[0], [stem.with_name(f"{stem.name}-{number}.npy") for number in range(len(reference.samples))]
    halved = live.ask(Merge(folder=str(merging.merged.path), dtype=merging.halves if whole else None)).tensors
    apart = np.abs(teacher_forced(live, first, paths[0]) - np.load(first.logits)).reshape(len(first.keep), -1).mean(axis=-1)
    if in_deviations(float(np.median(apart)), reference.logit_std) > (SAME_IN_HALVES if halved else SAME):
        return None
    live.ask(Round(folder=str(merging.merged.path)))
    if reference.subject.kind == "causal":
        of_passes(live, reference.samples, progress, bare=False)
    for sample, path in zip(reference.samples, paths, strict=True):
        teacher_forced(live, sample, path)
    return paths
