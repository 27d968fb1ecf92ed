"""From figures to a verdict: the limits, the reasons as sentences, and the remedy. Pure.

Called by the validate stage. Self-consistency (cache, padding), the tokenizer and the export's fidelity are judged by
limits of the variant's kind; closeness to the live model by the configured thresholds.
"""

from __future__ import annotations

import math

from daemon.contract.formats.declaration import Limits, Thresholds
from daemon.contract.jobs.figures import CheckFigures, Likeness
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.plan import fallback, unquantized
from handlers.validate.checks.comparison import in_deviations
from handlers.validate.checks.examination import Examination
from handlers.validate.workers.client import WorkerFailed

_TOKENIZER = (
    "give the checkpoint or the base the tokenizer that belongs to the model; where they have it, let the format's stage copy it and raise"
    " the stage's version; then export again"
)


def judge(variant: str, own: Limits, examination: Examination, thresholds: Thresholds | None) -> ArtifactCheck:
    """The check of one artifact that could be run."""
    figures, written = examination.figures, examination.figures.written()
    reasons = [examination.tokenizer] if examination.tokenizer else []
    remedies = [_TOKENIZER] if reasons else []
    if examination.labels:
        reasons.append(examination.labels)
        remedies.append("export again: id2label or the labels' thresholds in its config.json were changed")
    if examination.example:
        reasons.append(examination.example)
        remedies.append("export again; if it happens again, report it with the attempt's log")
    if examination.portability:
        reasons.append(examination.portability)
        remedies.append(
            f"export {variant} again: its new weights then leave room in 16 bits; to run this graph as it is, set onnxruntime's session"
            " option session.x64quantprecision to 1"
        )
    if defects := _defects(figures, own):
        reasons += defects
        remedies.append(f"try another export.opset, or leave {variant} out of export.variants: it would compute wrongly in use")
    if thresholds is not None and (distances := _distances(figures, thresholds)):
        reasons += [text for _, text in distances]
        remedies.append(_remedy(variant, [key for key, _ in distances]))
    if reasons:
        foreign = bool(examination.tokenizer or examination.labels or examination.example)
        return ArtifactCheck(
            variant=variant, verdict=Verdict.FAILED, reasons=tuple(reasons), remedy="; ".join(remedies), figures=written,
            of_precision=not foreign,
        )  # fmt: skip
    if thresholds is None:
        reason = f"there are no thresholds for {variant}, so it is not known how far it may be from the live model"
        remedy = f"set validate.thresholds.{variant} (agreement, kl, error)"
        return ArtifactCheck(variant=variant, verdict=Verdict.UNVERIFIED, reasons=(reason,), remedy=remedy, figures=written)
    return ArtifactCheck(variant=variant, verdict=Verdict.PASSED, figures=written)


def _defects(figures: CheckFigures, own: Limits) -> list[str]:
    """What is wrong whatever the thresholds say."""
    noise = own.noise_share * _largest_error(figures)
    ways, sides = (", ".join(_largest(errors)) for errors in (figures.cache_errors, figures.padding_errors))
    limits = (
        (figures.cache_error_max_absolute, max(own.cache, noise),
         f"cached decoding{f' ({ways})' if ways else ''} differs from its own single pass", "the cache is broken"),
        (figures.padding_error_max_absolute, max(own.padding, noise), f"in a {sides or 'left'}-padded batch it differs from single runs",
         "it does not honour the attention mask or the positions"),
        (figures.merged_error_max_absolute, own.merged, "it differs from the merged PyTorch model", "the conversion changed the model"),
    )  # fmt: skip
    found = []
    for value, limit, what, meaning in limits:
        if value is None or limit is None:
            continue
        deviations = in_deviations(value, figures.logit_std or 0.0)
        if not deviations <= limit:
            found.append(f"{what} by {_show(deviations)} standard deviations of the logits, above the limit {_show(limit)}: {meaning}")
    return found


def _largest_error(figures: Likeness) -> float:
    """`error_max` as a number to judge by: JSON, and so the model, has null for infinity."""
    return math.inf if figures.error_max is None else figures.error_max


def _largest(errors: dict[str, float] | None) -> list[str]:
    """The names of the largest errors: those of at least half the largest one."""
    return [name for name, error in (errors or {}).items() if error >= max((errors or {}).values()) / 2]


_CHOICES = {
    "text-classification": ("texts", "its label is"),
    "token-classification": ("tokens", "its most likely label is"),
    "question-answering": ("starts and ends of answers", "its most likely place is"),
    "fill-mask": ("hidden tokens", "its most likely token is"),
    "feature-extraction": ("tokens", "its vector is closest to"),
}
"""Task → what the positions are, and what agrees there."""


def _distances(figures: CheckFigures, thresholds: Thresholds) -> list[tuple[str, str]]:
    """Threshold keys that are not met, with their sentences. Figures that a task doesn't have are None."""
    found = []
    positions, agrees = _CHOICES.get(figures.task or "", ("positions", "its most likely token is"))
    if figures.agreement is not None and not figures.agreement >= thresholds.agreement:
        found.append(("agreement", (
            f"agreement {_show(figures.agreement)} is below the limit {_show(thresholds.agreement)}: at only that share of"
            f" {figures.positions} {positions}, {agrees} the live model's"
        )))  # fmt: skip
    if figures.kl is not None and not figures.kl <= thresholds.kl:
        unit = "a token" if positions == "positions" else "a position"
        found.append(("kl", f"the divergence of {_show(figures.kl)} nats {unit} is above the limit {_show(thresholds.kl)}"))
    error = _largest_error(figures)
    if not error <= thresholds.error:
        text = f"the largest logit error, {_show(error)} standard deviations, is above the limit {_show(thresholds.error)}"
        found.append(("error", text))
    return found


def _remedy(variant: str, keys: list[str]) -> str:
    names = " and ".join(f"validate.thresholds.{variant}.{key}" for key in keys)
    plain = fallback(variant) or unquantized(variant)
    if plain is not None:
        return f"use the variant {plain} instead of {variant}, or relax {names} if you accept the difference"
    return (
        f"compare the figure `merged` in report.json to see whether the merge or the export is wrong, or relax {names} if you"
        " accept the difference"
    )


def unrunnable(variant: str, error: WorkerFailed) -> ArtifactCheck:
    """The check of an artifact that could not be run."""
    figures = CheckFigures(log_end=error.details) if error.details else CheckFigures()
    reasons = (f"it could not be run: {error.cause}",)
    return ArtifactCheck(variant=variant, verdict=Verdict.FAILED, reasons=reasons, remedy=error.remedy, figures=figures.written())


def _show(value: float) -> str:
    return f"{value:.3g}"
