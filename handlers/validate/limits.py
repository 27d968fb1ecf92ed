"""The limits of one artifact with what its texts decide of each, beside the live model and beside that with its weights rounded. Pure.

Called by `verdict`, which makes reasons of those that are missed, and by `reading_on`, which reads on while they leave a verdict open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures, Decision
from daemon.contract.jobs.options import Undecided
from handlers.validate.checks import notes
from handlers.validate.checks.examination import Examination
from handlers.validate.deciding import EVEN, Look, decide, even_of, kept

ROUNDING = 5e-4
"""Divergence from the live model, in nats where the fine-tuning changes most, that rounding merged weights to bf16 may make: below it, a
missing part of the fine-tuning is one that the weights can't hold. Of vectors and numbers, in variances: a fifth of it."""
SHARE = "fine_tuning"
ASKED_ONCE = "the live model with rounded experts is asked once"


@dataclass(frozen=True)
class Judged:
    """The limits of an artifact, each with what is decided of it."""

    variant: str
    figures: CheckFigures
    decisions: tuple[Decision, ...]
    thresholds: Thresholds
    undecided: Undecided
    stopped: str | None = None
    """Why no more texts were read, as a clause."""

    def of(self, limit: str) -> Decision | None:
        """Give the decision of a limit; None where the artifact has no such figure."""
        return next((decision for decision in self.decisions if decision.limit == limit), None)

    def missed(self, limit: str) -> Decision | None:
        """Give the decision of a limit that is not kept."""
        divergence = self.of("kl") if limit == "agreement" and not _demanded(self.variant, self.thresholds) else None
        decision = self.of(limit)
        return None if decision is None or kept(decision, self.undecided, divergence) else decision

    def unproved(self, limit: str) -> str | None:
        """Say that a limit counts as missed because the texts do not show that it is kept, though the figure is within; None otherwise."""
        decision = self.missed(limit)
        if decision is None or decision.outcome != "undecided" or not kept(decision, "figure"):
            return None
        return notes.undecided(decision, self.undecided, self.stopped, kept=False)

    def parted(self) -> tuple[Judged, Judged]:
        """Give all limits but that of the share of the fine-tuning, and that one."""
        rest, share = (tuple(row for row in self.decisions if (row.limit == SHARE) is alone) for alone in (False, True))
        return replace(self, decisions=rest), replace(self, decisions=share)

    def by_weights(self) -> Judged:
        """Give them where the weights show that the fine-tuning is in the artifact, and the texts do not say how much of it."""
        rows = (row.plus(outcome="passed") if row.limit == SHARE and row.outcome == "undecided" else row for row in self.decisions)
        return replace(self, decisions=tuple(rows))

    def can_be_decided(self) -> bool:
        """Tell whether more texts could decide a limit that the verdict depends on: none but the share of the fine-tuning where another
        one is certainly missed."""
        undecided = [decision.limit for decision in self.decisions if decision.outcome == "undecided"]
        certain = any(replace(self, undecided="accept").missed(decision.limit) for decision in self.decisions)
        return SHARE in undecided if certain else bool(undecided)

    def open(self) -> list[str]:
        """Give a sentence for each limit of which the texts do not say whether it is kept, but those that are reasons."""
        return [
            notes.undecided(decision, self.undecided, self.stopped, kept=self.missed(decision.limit) is None)
            for decision in self.decisions
            if decision.outcome == "undecided" and decision.texts and not self.unproved(decision.limit)
        ]

    def excused(self) -> list[str]:
        """Say that agreement was not judged."""
        agreement, divergence = self.of("agreement"), self.of("kl")
        if agreement is None or divergence is None or self.missed("agreement") or (agreement.value or 0.0) >= agreement.allowed:
            return []
        if agreement.outcome == "undecided" and self.undecided == "accept":
            return []
        certainly = f"certainly at most {EVEN:g}" if agreement.outcome == "passed" else f"at most {even_of(divergence):g}"
        return [
            f"agreement {_show(agreement.value or 0.0)} is below the limit {_show(agreement.allowed)} and does not count: the divergence of"
            f" {_show(divergence.value or 0.0)} nats is {certainly} of its limit, so choices that differ are between almost equally likely"
            " answers"
        ]


def beside_live(variant: str, examination: Examination, thresholds: Thresholds, undecided: Undecided = "figure") -> Judged:
    """Give the limits of an artifact beside the live model."""
    figures, ways = examination.figures, 1 if examination.figures.rounded is None else 2
    look = Look(examination.by_limit(), examination.look, examination.looks, ways)
    demanded, tuned = _demanded(variant, thresholds), _tuned(figures)
    decisions = decide(figures, look, thresholds, examination.decisions, demanded=demanded, tuned=tuned)
    return Judged(variant, figures, decisions, thresholds, undecided, examination.stopped)


def beside_rounded(variant: str, examination: Examination, thresholds: Thresholds, undecided: Undecided = "figure") -> Judged | None:
    """Give them beside the live model with its weights rounded; None where nobody asked that."""
    if examination.figures.rounded is None:
        return None
    figures, beside = examination.figures.plus(**examination.figures.rounded.given), examination.beside
    figures = figures if beside is None else figures.plus(**beside.tuned.figures().given)
    look = Look({} if beside is None else beside.by_limit(), ways=2)
    decisions = decide(figures, look, thresholds, demanded=_demanded(variant, thresholds), tuned=_tuned(figures))
    return Judged(variant, figures, decisions, thresholds, undecided, ASKED_ONCE)


def by_figures(variant: str, figures: CheckFigures, thresholds: Thresholds) -> Judged:
    """Give the limits where there are figures alone, which say nothing of other texts."""
    return Judged(variant, figures, decide(figures, Look({}), thresholds, demanded=_demanded(variant, thresholds)), thresholds, "figure")


def _tuned(figures: CheckFigures) -> float | None:
    """Give the share of the fine-tuning where it has a limit."""
    return None if within_rounding(figures) else figures.fine_tuning


def within_rounding(figures: CheckFigures) -> bool:
    """Tell whether an artifact is as near to the live model as rounding merged weights makes it."""
    limit = (
        ROUNDING if figures.kl is not None else ROUNDING / 5 * (1.0 if figures.cosine_mean is not None else (figures.logit_std or 0.0) ** 2)
    )
    return (figures.distance_from_live or 0.0) <= limit


def _demanded(variant: str, thresholds: Thresholds) -> bool:
    """Tell whether the agreement is judged however small the divergence is: where somebody asks for more than the default, but by
    `validate.strictness`."""
    default = catalog().thresholds.get(variant)
    if default is None:
        return True
    strict = default.scaled("strict")
    by_strictness = thresholds.agreement == strict.agreement and (thresholds.kl == strict.kl or thresholds.error == strict.error)
    return thresholds.agreement > default.agreement and not by_strictness


def _show(value: float) -> str:
    return f"{value:.3g}"
