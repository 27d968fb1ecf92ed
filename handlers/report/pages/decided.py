"""How certain the verdicts are: of each limit what the figure is for all texts like those that were read, and whether that decides. Pure.

Called by `html` and `readme`.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemon.contract import units
from daemon.contract.formats.thresholds import LIMIT_NAMES
from daemon.contract.jobs.figures import Decision
from daemon.contract.language import lists
from daemon.contract.language.catalog import translated, translated_plural
from handlers.report.model import Artifact, Report

_LEAST = frozenset({"agreement", "fine_tuning"})
"""Limits that are smallest values."""


@dataclass(frozen=True)
class Row:
    """One limit of an artifact."""

    variant: str
    limit: str
    figure: str
    certain: str
    """Between which values it certainly is."""
    allowed: str
    outcome: str
    why: str
    """Why it counts as kept where the bounds alone do not say so."""
    texts: int


def rows(report: Report) -> tuple[Row, ...]:
    """All limits that were judged by texts."""
    return tuple(
        _row(artifact.variant, decision) for artifact in report.artifacts for decision in artifact.measured.decisions if decision.texts
    )


def sentences(report: Report) -> list[str]:
    """For those of which it is alike: after how many prompts all was decided, or what is not."""
    names: dict[str, list[str]] = {}
    for artifact in report.artifacts:
        if clause := sentence(artifact):
            names.setdefault(clause, []).append(artifact.variant)
    said = translated("{variants}: {clause}.")
    return [said.format(variants=lists.names(those), clause=clause) for clause, those in names.items()]


def sentence(artifact: Artifact) -> str:
    """The same of one artifact, as a clause; "" where nothing was judged by texts."""
    decisions = [decision for decision in artifact.measured.decisions if decision.texts]
    if not decisions:
        return ""
    read = max(decision.texts for decision in decisions)
    open_limits = [translated(LIMIT_NAMES.get(decision.limit, decision.limit)) for decision in decisions if decision.outcome == "undecided"]
    if open_limits:
        words = translated_plural("undecided after {count} prompt: {limits}", "undecided after {count} prompts: {limits}", read)
        return words.format(count=read, limits=lists.names(open_limits))
    return translated_plural("decided with {count} prompt", "decided with {count} prompts", read).format(count=read)


def _row(variant: str, decision: Decision) -> Row:
    show = units.percent if decision.limit == "agreement" else units.number
    certain = ""
    if decision.limit == "error":
        certain = (
            ""
            if decision.high is None
            else translated("beyond the limit at most {share} of all positions").format(share=units.percent(decision.high))
        )
    elif decision.low is not None and decision.high is not None:
        certain = units.span((decision.low, decision.high), show)
    excused = decision.limit == "agreement" and decision.outcome == "passed" and (decision.low or 0.0) < decision.allowed
    why = translated("does not count, as KL is certainly at most half of its limit") if excused else ""
    unit = translated("KL, nats") if decision.limit == "kl" else translated(LIMIT_NAMES.get(decision.limit, decision.limit))
    return Row(
        variant, unit, show(decision.value), certain or units.NOTHING,
        f"{'≥' if decision.limit in _LEAST else '≤'} {show(decision.allowed)}", decision.outcome, why, decision.texts,
    )  # fmt: skip
