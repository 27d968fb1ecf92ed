"""Base, live model and artifacts side by side, with intervals; and where each artifact is farthest from the live model. Pure.

Called by `build`, and by the page's template.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemon.contract.advice.which import beside_live
from daemon.contract.jobs.figures import Likeness, LiveFigures, ReferenceFigures
from handlers.report import units
from handlers.report.model import Artifact, Compared, Comparison, Report
from handlers.report.samples import visible

MOST = 200
"""Characters before a position that are shown."""
LEAST = 0.01
"""Divergence at a position, in nats, below which the same choice is not worth a look."""
_FIGURES = tuple(name for name in Compared.model_fields if name in Likeness.model_fields)
_OF_ARTIFACTS = ("fine_tuning", "fine_tuning_interval", "rounding_share")


def collect(reference: ReferenceFigures, artifacts: tuple[Artifact, ...]) -> Comparison:
    """The rows, the base first; none where no check measured intervals."""
    live = reference.reference or LiveFigures()
    checked = [artifact for artifact in artifacts if artifact.measured.texts is not None]
    if not checked:
        return Comparison()
    base = [_row("base", live.adapter, _FIGURES)] if live.adapter else []
    rows = [_row(artifact.variant, artifact.measured, (*_FIGURES, *_OF_ARTIFACTS)) for artifact in checked]
    first = checked[0].measured
    return Comparison(
        rows=(*base, Compared(name="live", perplexity=live.perplexity), *rows), texts=first.texts, positions=first.positions,
        no_base=live.no_base,
    )  # fmt: skip


def _row(name: str, figures: Likeness, names: tuple[str, ...]) -> Compared:
    return Compared(name=name, **{key: value for key in names if _finite(value := getattr(figures, key))})


def _finite(value: Any) -> bool:
    return value is not None and all(math.isfinite(number) for number in (value if isinstance(value, tuple) else (value,)))


@dataclass(frozen=True)
class Cell:
    """A figure as it is shown."""

    text: str
    small: str = ""


@dataclass(frozen=True)
class Table:
    """The comparison as a table: what the models have no figures for is left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def table(comparison: Comparison) -> Table:
    """Rows of cells, one for each column that any row has a figure for."""
    shown = [(title, [show(row) for row in comparison.rows]) for title, show in _COLUMNS]
    columns = [(title, cells) for title, cells in shown if any(cells)]
    names = {"base": "base, without fine-tuning", "live": "live model, fine-tuned"}
    return Table(
        columns=tuple(title for title, _ in columns),
        rows=tuple(
            (names.get(row.name, row.name), tuple(cells[number] or Cell(units.NOTHING) for _, cells in columns))
            for number, row in enumerate(comparison.rows)
        ),
    )


def _span(interval: tuple[float, float] | None, show: Callable[[float], str] = units.number) -> str:
    return f"{show(interval[0])} to {show(interval[1])}" if interval else ""


def _perplexity(row: Compared) -> Cell | None:
    if row.perplexity is None:
        return None
    if row.perplexity_ratio is None:
        return Cell(units.number(row.perplexity))
    if row.perplexity_ratio_interval is None:
        return Cell(units.number(row.perplexity), f"{units.number(row.perplexity_ratio)} ×")
    standing = "" if row.name == "base" else f", {beside_live(row.perplexity_ratio_interval)}"
    return Cell(units.number(row.perplexity), f"{units.number(row.perplexity_ratio)} × ({_span(row.perplexity_ratio_interval)}){standing}")


def _greedy(row: Compared) -> Cell | None:
    if row.greedy_same_median is None:
        return None
    return Cell(units.number(row.greedy_same_median), f"of {units.number(row.greedy_tokens_median)}")


def _plain(key: str, show: Callable[[float], str] = units.number) -> Callable[[Compared], Cell | None]:
    """What shows a figure with its interval, where it has one."""

    def cell(row: Compared) -> Cell | None:
        value = getattr(row, key)
        return None if value is None else Cell(show(value), _span(getattr(row, f"{key}_interval", None), show))

    return cell


_COLUMNS: tuple[tuple[str, Callable[[Compared], Cell | None]], ...] = (
    ("Perplexity", _perplexity), ("KL, nats", _plain("kl")), ("Agreement", _plain("agreement", units.percent)),
    ("Same greedy tokens", _greedy), ("Mean cosine", _plain("cosine_mean", "{:.4f}".format)),
    ("Rank correlation", _plain("rank_correlation", "{:.4f}".format)), ("Fine-tuning in it", _plain("fine_tuning")),
    ("Lost to rounding", _plain("rounding_share", units.percent)),
)  # fmt: skip

FEW_TEXTS = 100
"""Below so many texts, a score says little: of 100, the standard error of an accuracy of 0.8 is 0.04."""
_SCORES = (
    ("Texts", "texts"), ("Accuracy", "accuracy"), ("Macro F1", "macro_f1"), ("Exact match", "exact_match"), ("chrF", "chrf"),
    ("BLEU", "bleu"),
)  # fmt: skip
_ANSWERS = ("Answers: agreement", "Answers: KL")


@dataclass(frozen=True)
class Parting:
    """Where artifacts are farthest from the live model."""

    names: tuple[str, ...]
    where: str
    before: str
    live: str
    artifact: str


def partings(report: Report) -> tuple[Parting, ...]:
    """One for each artifact that has such a position; artifacts that part at the same place alike stand together. Where an artifact chooses
    the same with almost the same probability, there is nothing to look at."""
    alike: dict[tuple[int, int, str | None], list[Artifact]] = {}
    for artifact in report.artifacts:
        worst = artifact.measured.worst
        if worst is None or worst.live is None or worst.artifact is None:
            continue
        if worst.live != worst.artifact or (worst.position_kl or 0.0) >= LEAST:
            alike.setdefault((worst.number, worst.position, worst.artifact), []).append(artifact)
    return tuple(_parting(those) for those in alike.values())


def _parting(artifacts: list[Artifact]) -> Parting:
    worst = artifacts[0].measured.worst
    assert worst is not None
    divergences = [artifact.measured.worst.position_kl for artifact in artifacts if artifact.measured.worst]
    nats = " and ".join(dict.fromkeys(units.number(value) for value in divergences))
    one_answer = worst.before is None  # of a whole text, which then stands below
    place = f"KL {nats} nats" if one_answer else f"prompt {worst.number}, position {worst.position + 1}: KL {nats} nats"
    same = ", the same choice with another probability" if worst.live == worst.artifact else ""
    before = f"{worst.prompt} → " if one_answer else worst.before or ""
    return Parting(
        names=tuple(artifact.variant for artifact in artifacts), where=place + same, before=before[-MOST:], live=visible(worst.live or ""),
        artifact=visible(worst.artifact or ""),
    )  # fmt: skip


@dataclass(frozen=True)
class ScoreTable:
    """The models' scores against the data, as text; only what was scored has a column."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    few: int
    """The number of texts where they are few; else 0."""


def scores(report: Report) -> ScoreTable | None:
    """None where nothing was scored."""
    scored: list[tuple[str, dict[str, str]]] = []
    for name, figures, marked in report.scored:
        values = {title: units.number(getattr(figures, key)) for title, key in _SCORES if figures and getattr(figures, key) is not None}
        if marked and marked.agreement is not None:
            values["Answers: agreement"] = units.percent(marked.agreement)
        if marked and marked.kl is not None:
            values["Answers: KL"] = units.number(marked.kl)
        scored.append((name, values))
    columns = [title for title in (*(title for title, _ in _SCORES), *_ANSWERS) if any(title in values for _, values in scored)]
    if not columns:
        return None
    texts = max((figures.texts or 0 for _, figures, _ in report.scored if figures), default=0)
    rows = tuple((name, tuple(values.get(title, "–") for title in columns)) for name, values in scored)
    return ScoreTable(tuple(columns), rows, texts if texts < FEW_TEXTS else 0)
