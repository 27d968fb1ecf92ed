"""From figures to a verdict: the limits, the reasons as sentences, and the remedy. Pure.

Called by the stages `merged` and `check-VARIANT`. Findings fail an artifact as they are; self-consistency (cache, padding) and the export's
fidelity are judged by limits of the variant's kind; closeness to the live model by the configured thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.declaration import Limits
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures, Decision, Likeness
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.options import Undecided
from daemon.contract.jobs.plan import fallback, unquantized
from handlers.validate import limits
from handlers.validate.arithmetic import growth
from handlers.validate.arithmetic.comparison import in_deviations
from handlers.validate.checks import notes
from handlers.validate.checks.examination import Examination
from handlers.validate.deciding import PART
from handlers.validate.findings import RARE, Finding
from handlers.validate.length import faults as length_faults
from handlers.validate.limits import SHARE, Judged, within_rounding
from handlers.validate.workers.client import WorkerFailed


def judge(
    variant: str, own: Limits, examination: Examination, thresholds: Thresholds | None, undecided: Undecided = "figure"
) -> ArtifactCheck:
    """Give the check of one artifact that could be run. `undecided`: what counts of a limit that the texts do not decide."""
    figures = examination.figures
    judged = None if thresholds is None else limits.beside_live(variant, examination, thresholds, undecided)
    beside = None if thresholds is None else limits.beside_rounded(variant, examination, thresholds, undecided)
    compared = examination.weighed or figures.twin_error is not None
    proved = compared and not any(finding.aspect in ("weights", "structure") for finding in examination.findings)
    by_weights = []
    if proved and judged and examination.base and notes.alike(figures, examination.base):
        by_weights = [notes.by_weights(row) for row in judged.parted()[1].decisions if row.outcome == "undecided" and row.texts]
        judged = judged.by_weights()
    told_alone = [finding for finding in examination.findings if finding.aspect == RARE]  # whatever is wrong everywhere is wrong there too
    reasons = [finding.reason for finding in examination.findings if finding not in told_alone]
    remedies = [finding.remedy for finding in examination.findings if finding not in told_alone]
    if defects := _defects(figures, own):
        reasons += defects
        remedies.append(f"try another export.opset, or leave {variant} out of export.variants: it would compute wrongly in use")
    if proved and thresholds is not None and (coarse := _coarse_in_batches(figures, own, thresholds)):
        reasons.append(coarse)
        remedies.append(f"use the variant {fallback(variant) or unquantized(variant)} instead of {variant}")
    share = beside if judged and beside and judged.missed(SHARE) and not beside.missed(SHARE) else judged
    if missing := _missing(figures, share, rounded=unquantized(variant) is not None, proved=proved):
        reasons.append(missing)
        less = fallback(variant) or unquantized(variant)
        again = f"look at the merge's figures, whether it changed what the adapter names, and let {variant} be made again"
        remedies.append(f"use the variant {less} instead of {variant}" if proved and less else again)
    near, as_rounded, distances = judged, None, _distances(judged) if judged else []
    if judged and beside and distances and not _distances(beside):
        near, as_rounded, distances = beside, _by_rounding(judged, beside), []
    counted = [near.parted()[0], share.parted()[1]] if near and share else []
    if distances:
        reasons += [text for _, text in distances]
        remedies.append(_remedy(variant, [key for key, _ in distances]))
        if growing := notes.grows(figures):
            reasons.append(f"{growing}, {notes.POSITIONS}")
    if (
        figures.media is not None
        and thresholds is not None
        and (unseen := _distances(limits.by_figures(variant, CheckFigures(**figures.media.given), thresholds)))
    ):
        reasons += [f"with pictures or sound, {text}" for _, text in unseen]
        remedies.append(_remedy(variant, [key for key, _ in unseen]))
    unusable = any(finding.aspect == "length" for finding in examination.findings)
    if not unusable and (at_length := length_faults.faults(figures, own, thresholds, alone=not reasons)):
        reasons += at_length
        remedies.append(length_faults.REMEDY)
    if not reasons:
        reasons += [finding.reason for finding in told_alone]
        remedies += [finding.remedy for finding in told_alone]
    open_limits = [sentence for part in counted for sentence in part.open()]
    excused = [sentence for part in counted for sentence in part.excused() if not reasons]
    remarks = [*examination.notes, *open_limits, *by_weights, *excused, *notes.notes(figures, examination.base, failed=bool(reasons))]
    if as_rounded:
        remarks.append(as_rounded)
    if lost := _swallowed(figures, judged):
        remarks.append(lost)
    if not reasons and figures.long and thresholds and figures.rounded is None and (lone := length_faults.tied(figures.long, thresholds)):
        remarks.append(lone)
    decided = {"decisions": tuple(decision for part in counted for decision in part.decisions)} if counted else {}
    written = figures.plus(notes=tuple(remarks), **decided).written()
    if reasons:
        foreign = any(not finding.of_precision for finding in examination.findings)
        if missing and unquantized(variant) is None:
            foreign = True  # of a smaller form, few bits may have taken it away
        return ArtifactCheck(
            variant=variant, verdict=Verdict.FAILED, reasons=tuple(reasons), remedy="; ".join(dict.fromkeys(remedies)), figures=written,
            of_precision=not foreign,
        )  # fmt: skip
    if examination.unread is not None and (own.pytorch or own.engine == "torch"):
        reason, remedy = examination.unread.cause, examination.unread.remedy
        return ArtifactCheck(variant=variant, verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=remedy, figures=written)
    if thresholds is None:
        reason = f"there are no thresholds for {variant}, so it is not known how far it may be from the live model"
        remedy = f"set validate.limits.{variant} (agreement, kl, error)"
        return ArtifactCheck(variant=variant, verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=remedy, figures=written)
    return ArtifactCheck(variant=variant, verdict=Verdict.PASSED, figures=written)


def _defects(figures: CheckFigures, own: Limits) -> list[str]:
    """Give what is wrong whatever the thresholds say."""
    noise = own.noise_share * _largest_error(figures)
    ways, sides = (", ".join(_largest(errors)) for errors in (figures.cache_errors, figures.padding_errors))
    padding = None if _mask_is_judged_in_float(figures) else figures.padding_error_max_absolute
    judged = (
        (figures.cache_error_max_absolute, max(own.cache, noise),
         f"cached decoding{f' ({ways})' if ways else ''} differs from its own single pass", f"the cache is broken{_course(figures)}"),
        (padding, max(own.padding, noise), f"in a {sides or 'left'}-padded batch it differs from single runs",
         "it does not honour the attention mask or the positions"),
        (figures.merged_error_max_absolute, own.merged, "it differs from the merged PyTorch model", "the conversion changed the model"),
    )  # fmt: skip
    defects = []
    for value, limit, what, meaning in judged:
        if value is None or limit is None:
            continue
        deviations = in_deviations(value, figures.logit_std or 0.0)
        if not deviations <= limit:
            defects.append(f"{what} by {_show(deviations)} standard deviations of the logits, above the limit {_show(limit)}: {meaning}")
    return defects


def _mask_is_judged_in_float(figures: CheckFigures) -> bool:
    """Tell whether the comparison with the twin says if the mask is honoured: where one scale rounds the activations of all rows, padding
    and the other rows change a row's outputs in a sound artifact too."""
    return figures.has("twin_padding_error")


def _coarse_in_batches(figures: CheckFigures, own: Limits, thresholds: Thresholds) -> str | None:
    """Of an artifact that honours the mask: that it rounds more in a batch than it may beside the live model."""
    if not _mask_is_judged_in_float(figures) or figures.padding_error_max_absolute is None:
        return None
    limit = max(own.padding, own.noise_share * _largest_error(figures), thresholds.error)
    deviations = in_deviations(figures.padding_error_max_absolute, figures.logit_std or 0.0)
    if deviations <= limit:
        return None
    return (
        f"in a padded batch it differs from single runs by {_show(deviations)} standard deviations of the logits, above the limit"
        f" {_show(limit)}: it honours the attention mask, but one scale rounds the activations of all rows, and padding makes it too coarse"
    )


def _course(figures: CheckFigures) -> str:
    """Give what the course of the cache's error over the steps says."""
    if figures.cache_growth is None:
        return ""
    if figures.cache_growth > growth.MARGIN:
        ratio = f"{figures.cache_growth:.2g} times from the first to the last third"
        return f", and more with every step ({ratio}): tokens are lost or counted wrongly"
    return ", from the first steps on"


NOTHING = 0.25
"""Share of the fine-tuning's effect below which a model is one without its adapter."""


def _missing(figures: CheckFigures, judged: Judged | None, *, rounded: bool, proved: bool) -> str | None:
    """Say that the fine-tuning, or a part of it, is not in the artifact; None where it is. `rounded`: it is a form of another variant in
    fewer bits, which may have taken it away. `proved`: it computes with the merged weights, rounded."""
    missed = judged.missed(SHARE) if judged else None
    if judged is None or missed is None:
        return None
    if unproved := judged.unproved(SHARE):
        return unproved
    share = missed.value or 0.0
    nearer = "closer to the base than to the live model" if share < 0.5 else "closer to the live model than to the base, but not enough"
    value = f"{share:.2g}" + (f", between {_show(missed.low)} and {_show(missed.high)}" if missed.low is not None and missed.high else "")
    sentence = (
        f"it is {nearer}: where these differ most, its divergence is {_show(figures.distance_from_base or 0.0)} from the base without the"
        f" adapter and {_show(figures.distance_from_live or 0.0)} from the live model, and the share of the fine-tuning's effect is {value}"
    )
    if proved:
        return f"{sentence}. Its weights are the merged ones, rounded: its few bits lost the rest, unless the merged model lacks it too"
    if share < NOTHING:
        return f"{sentence}. So it is a merged model without its adapter" + (", or its few bits took the adapter away" if rounded else "")
    return f"{sentence}. So it is of an earlier or another checkpoint, merged with another factor, or " + (
        "its few bits lost the rest" if rounded else "where the merge warned of it, rounding to the weights' dtype lost the rest"
    )


def _swallowed(figures: CheckFigures, judged: Judged | None) -> str | None:
    """Say that the fine-tuning changes less than merged weights can hold."""
    if judged is None or figures.fine_tuning is None or figures.fine_tuning >= PART or not within_rounding(figures):
        return None
    return (
        f"the fine-tuning changes so little (divergence {_show(figures.distance_from_live or 0.0)}) that rounding the merged weights takes"
        f' most of it away: its share is {figures.fine_tuning or 0.0:.2g}; merge.dtype = "float32" keeps it'
    )


def _largest_error(figures: Likeness) -> float:
    """Give `error_max` as a number to judge by: JSON, and so the model, has null for infinity."""
    return math.inf if figures.error_max is None else figures.error_max


def _largest(errors: dict[str, float] | None) -> list[str]:
    """Give the names of the largest errors: those of at least half the largest one."""
    return [name for name, error in (errors or {}).items() if error >= max((errors or {}).values()) / 2]


_CHOICES = {
    "text-classification": ("texts", "its label is"),
    "token-classification": ("tokens", "its most likely label is"),
    "question-answering": ("starts and ends of answers", "its most likely place is"),
    "fill-mask": ("hidden tokens", "its most likely token is"),
    "feature-extraction": ("tokens", "its vector is closest to"),
}
"""Task → what the positions are, and what agrees there."""


def _by_rounding(judged: Judged, beside: Judged) -> str:
    """Say that limits that are missed beside the live model are kept beside that with rounded weights."""
    return (
        "rounding the merged weights makes the model choose other experts at some positions: the largest error beside the live model"
        f" is {_show(_largest_error(judged.figures))} standard deviations; beside the live model with the weights that PEFT merges, rounded"
        f" in the same way, 98 % of the errors are at most {_show(_largest_error(beside.figures))}, and that was judged;"
        ' merge.dtype = "float32" keeps the answers'
    )


def _distances(judged: Judged) -> list[tuple[str, str]]:
    """Give threshold keys that are not met, with their sentences. Figures that a task doesn't have are None."""
    unmet = []
    positions, agrees = _CHOICES.get(judged.figures.task or "", ("positions", "its most likely token is"))
    if missed := judged.missed("agreement"):
        unmet.append(("agreement", (
            f"agreement {_value(missed)} is below the limit {_show(missed.allowed)}: at only that share of"
            f" {judged.figures.positions if missed.looks == 1 else 'all'} {positions}, {agrees} the live model's"
        )))  # fmt: skip
    if missed := judged.missed("kl"):
        unit = "a token" if positions == "positions" else "a position"
        unmet.append(("kl", f"the divergence of {_value(missed)} nats {unit} is above the limit {_show(missed.allowed)}"))
    if missed := judged.missed("error"):
        text = f"the largest logit error, {_value(missed)} standard deviations, is above the limit {_show(missed.allowed)}"
        unmet.append(("error", text))
    if missed := judged.missed("perplexity"):
        text = f"the perplexity of the texts is {_value(missed)} times the live model's, above the limit {_show(missed.allowed)}"
        unmet.append(("perplexity", text))
    return [(key, judged.unproved(key) or text + _certainty(judged.of(key))) for key, text in unmet]


def _value(decision: Decision) -> str:
    return (
        "infinite"
        if decision.limit == "error" and decision.value is None
        else _show(math.nan if decision.value is None else decision.value)
    )


def _certainty(decision: Decision | None) -> str:
    """Give by how many texts that is, where more were read than all figures are of."""
    return "" if decision is None or decision.looks == 1 else f", by {decision.texts} prompts"


def _remedy(variant: str, keys: list[str]) -> str:
    names = " and ".join(f"validate.limits.{variant}.{key}" for key in keys)
    plain = fallback(variant) or unquantized(variant)
    if plain is not None:
        return f"use the variant {plain} instead of {variant}, or relax {names} if you accept the difference"
    return (
        f"compare the figure `merged` in report.json to see whether the merge or the export is wrong, or relax {names} if you"
        " accept the difference"
    )


def unrunnable(variant: str, error: WorkerFailed, known: Sequence[Finding] = ()) -> ArtifactCheck:
    """Give the check of an artifact that could not be run, or not to the end. `known`: what had been found out until then.

    It failed, unless the machine lacks the device that it runs on: then nobody knows.
    """
    if error.code == FaultCode.DEVICE_MISSING and not known:
        reason = f"it could not be run here: {error.cause}"
        return ArtifactCheck(variant=variant, verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=error.remedy)
    figures = CheckFigures(log_end=error.details) if error.details else CheckFigures()
    reasons = (*(finding.reason for finding in known), f"it could not be run: {error.cause}")
    remedy = "; ".join(dict.fromkeys((*(finding.remedy for finding in known), error.remedy)))
    return ArtifactCheck(
        variant=variant, verdict=Verdict.FAILED, reasons=reasons, remedy=remedy, figures=figures.written(),
        of_precision=error.of_precision and all(finding.of_precision for finding in known),
    )  # fmt: skip


def _show(value: float) -> str:
    return f"{value:.3g}"
