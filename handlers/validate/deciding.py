"""Whether each limit is kept, missed or undecided, by bounds over the texts that were read. Pure.

Called by `verdict`, and by `reading_on`, which reads more texts while a limit is undecided. A limit is kept where the bound on its
far side is within it, missed where the bound on its near side is beyond it. Each side is wrong for at most ERROR of all artifacts:

- One that misses a limit passes where that limit's own bound is wrong, since all limits must be kept (intersection-union test: Berger,
  Technometrics 24, 1982). So each limit may spend the whole error. Agreement can also be excused by the divergence: the two share it. Where
  the limits may be kept beside either of two models (experts in 16 bits), each of the two has half of it.
- One that keeps all limits fails where any bound is wrong: the limits share the error (Bonferroni).

What a look has decided stays decided: the bounds of all looks hold together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import Decision, Likeness
from daemon.contract.jobs.options import Undecided
from handlers.validate.arithmetic import bounds
from handlers.validate.arithmetic.bounds import ERROR, Mean, spent

EVEN = 0.5
"""Share of the limit of `kl`: where the divergence is certainly below it, choices that differ are, on average, between answers that are
almost equally likely, and agreement does not count."""
EVEN_FIGURE = 0.2
"""The same of the divergence itself, where nothing bounds it and the figures count."""
FARTHEST = 2.5
"""How many times the allowed share of choices may differ before no divergence excuses it: half of all, where 0.8 must agree. Sound 4-bit
forms of models whose answers are all almost equally likely had up to 2.4 times (benchmarks/gate.py); faults that change nearly every choice
of such a model had 5 times."""
PART = 0.75
"""Share of the fine-tuning's effect that an artifact must have."""
KEPT = {"kl": 0.75, "agreement": 0.25, "perplexity": 1.0, "fine_tuning": 1.0}
"""Limit → share of ERROR that its bound may spend to say that it is kept. By the one of `kl` agreement may count as kept too; of vectors,
which have none, by how near they are to being taken for others."""
MISSED = 1 / len(KEPT)
"""The same to say that one is missed."""


@dataclass(frozen=True)
class Look:
    """What is known at a look."""

    texts: Mapping[str, Sequence[tuple[float, float]]]
    """Limit → (sum, weight) of each text."""
    number: int = 0
    """Of the look, the first being 0."""
    count: int = 1
    """Looks that there may be."""
    ways: int = 1
    """In how many ways an artifact may keep its limits, where any of them will do."""

    def error(self, part: float) -> float:
        """Give what a bound may spend at this look, of a part of ERROR."""
        return spent(part * ERROR, self.number, self.count)


def decide(
    figures: Likeness,
    look: Look,
    thresholds: Thresholds,
    earlier: Sequence[Decision] = (),
    *,
    demanded: bool = True,
    tuned: float | None = None,
) -> tuple[Decision, ...]:
    """Give the decision of each limit whose figure there is. `figures`: of the first texts. `demanded`: agreement counts however small the
    divergence is. `tuned`: the share of the fine-tuning, where it has a limit."""
    decided = {decision.limit: decision for decision in earlier if decision.outcome != "undecided"}
    decisions, divergence = dict[str, Decision](), None
    for limit, value, allowed in (
        ("kl", figures.kl, thresholds.kl), ("agreement", figures.agreement, thresholds.agreement),
        ("perplexity", figures.perplexity_ratio, thresholds.perplexity_ratio), ("fine_tuning", tuned, PART),
    ):  # fmt: skip
        if value is None:
            continue
        decision = _decided(limit, value, allowed, look)
        if limit == "kl":
            divergence = decision
        elif limit == "agreement" and divergence is not None and not demanded:
            decision = _excused(decision, divergence, thresholds)
        decisions[limit] = decided.get(limit) or decision
    return (*decisions.values(), _of_errors(figures, look, thresholds))


def kept(decision: Decision, undecided: Undecided, divergence: Decision | None = None) -> bool:
    """Tell whether the limit counts as kept. `divergence`: the decision of `kl`, if agreement does not count where that is small."""
    if decision.outcome != "undecided":
        return decision.outcome == "passed"
    if undecided != "figure":
        return undecided == "accept"
    if (
        divergence is not None and _is_excusable(decision)
        and divergence.value is not None and divergence.value <= even_of(divergence) * divergence.allowed
    ):  # fmt: skip
        return True
    return _within(decision.limit, decision.value, decision.allowed)


def even_of(divergence: Decision) -> float:
    """Give the share of its limit up to which a divergence's figure excuses choices that are undecided."""
    return EVEN if divergence.outcome == "passed" else EVEN_FIGURE


def _within(limit: str, value: float | None, allowed: float) -> bool:
    if value is None:
        return False
    return value >= allowed if limit in ("agreement", "fine_tuning") else value <= allowed


def _decided(limit: str, value: float, allowed: float, look: Look) -> Decision:
    """Give what the texts say of one limit; `value`: the figure, where they say nothing of it."""
    mean = Mean(look.texts.get(limit, ()))
    low = high = None
    kept_error, missed_error = look.error(KEPT[limit] / look.ways), look.error(MISSED)
    if mean.texts:
        value = mean.value
        if limit == "kl":
            low, high = mean.lowest(missed_error, positive=True), mean.highest(kept_error, positive=True)
        elif limit == "agreement":
            apart = Mean([(weight - same, weight) for same, weight in look.texts[limit]])
            most, least = apart.highest_share(kept_error), apart.lowest(missed_error, positive=True)
            near = Mean(look.texts.get("mistakable", ())).highest(look.error(KEPT["kl"] / look.ways), positive=True)
            if most is not None and near is not None:
                most = min(most, near)  # no vectors are taken for others more often than this says
            low, high = most if most is None else 1 - most, least if least is None else 1 - least
        elif limit == "perplexity":
            value = _ratio(mean.value)
            low, high = (end if end is None else _ratio(end) for end in (mean.lowest(missed_error), mean.highest(kept_error)))
        else:
            low, high = mean.lowest(kept_error), mean.highest(missed_error)
    decision = Decision(limit=limit, value=value if math.isfinite(value) else None, allowed=allowed, low=low, high=high, texts=mean.texts,
                        outcome="undecided", looks=look.number + 1)  # fmt: skip
    if not math.isfinite(value):
        return decision.plus(outcome="failed")
    if low is None or high is None:
        return decision
    ends = (low, high) if limit in ("agreement", "fine_tuning") else (high, low)
    if _within(limit, ends[0], allowed):
        return decision.plus(outcome="passed")
    return decision if _within(limit, ends[1], allowed) else decision.plus(outcome="failed")


def _ratio(nats: float) -> float:
    return math.exp(min(nats, 700.0)) if not math.isnan(nats) else nats


def _excused(decision: Decision, divergence: Decision, thresholds: Thresholds) -> Decision:
    """Give the decision of agreement where it does not count if the divergence is small."""
    even = EVEN * thresholds.kl
    if not _is_excusable(decision):
        return decision
    if divergence.high is not None and divergence.high <= even:
        return decision.plus(outcome="passed")
    if decision.outcome == "failed" and decision.value is not None and not (divergence.low is not None and divergence.low > even):
        return decision.plus(outcome="undecided")
    return decision


def _is_excusable(agreement: Decision) -> bool:
    return agreement.value is not None and 1 - agreement.value <= FARTHEST * (1 - agreement.allowed)


def _of_errors(figures: Likeness, look: Look, thresholds: Thresholds) -> Decision:
    """An error beyond the limit is a fact; none is one of the positions that were read."""
    read = look.texts.get("error", ())
    largest = max([math.inf if figures.error_max is None else figures.error_max, *(value for value, _ in read)])
    within = largest <= thresholds.error
    return Decision(
        limit="error", value=largest if math.isfinite(largest) else None, allowed=thresholds.error,
        high=bounds.never([weight for _, weight in read], look.error(1.0)) if within else None,
        outcome="passed" if within else "failed", texts=len(read), looks=look.number + 1,
    )  # fmt: skip
