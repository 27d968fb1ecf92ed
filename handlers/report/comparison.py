"""Base, live model and artifacts side by side, with intervals; and where each artifact is farthest from the live model. Pure.

Called by `build`, and by the page's template.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from daemon.contract import units
from daemon.contract.advice.which import beside_live, joined
from daemon.contract.jobs.figures import Likeness, LiveFigures, ReferenceFigures, Statistics, TaskFigures
from daemon.contract.language.catalog import to_translate, translated, translated_plural
from daemon.contract.language.lists import bracketed, clauses
from daemon.contract.language.recorded import translated_text
from handlers.report.model import Artifact, Compared, Comparison, Report
from handlers.report.samples import visible

MOST = 200
"""Characters before a position that are shown."""
LEAST = 0.01
"""Divergence at a position, in nats, below which the same choice is not worth a look."""
_FIGURES = tuple(name for name in Compared.model_fields if name in Likeness.model_fields)
_OF_ARTIFACTS = ("fine_tuning", "fine_tuning_interval", "rounding_share", "statistics")


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
    if isinstance(value, Statistics):
        return True
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
    figures: frozenset[str]
    """The columns, as `_COLUMNS` names them."""


def table(comparison: Comparison) -> Table:
    """Rows of cells, one for each column that any row has a figure for."""
    shown = [(title, [show(row) for row in comparison.rows]) for title, show in _COLUMNS]
    columns = [(title, cells) for title, cells in shown if any(cells)]
    names = {"base": translated("base, without fine-tuning"), "live": translated("live model, fine-tuned")}
    return Table(
        columns=tuple(translated(title) for title, _ in columns),
        figures=frozenset(title for title, _ in columns),
        rows=tuple(
            (names.get(row.name, row.name), tuple(cells[number] or Cell(units.NOTHING) for _, cells in columns))
            for number, row in enumerate(comparison.rows)
        ),
    )


def _perplexity(row: Compared) -> Cell | None:
    if row.perplexity is None:
        return None
    if row.perplexity_ratio is None:
        return Cell(units.number(row.perplexity))
    if row.perplexity_ratio_interval is None:
        return Cell(units.number(row.perplexity), units.compared(row.perplexity_ratio))
    ratio = bracketed(units.compared(row.perplexity_ratio), units.span(row.perplexity_ratio_interval))
    standing = [] if row.name == "base" else [beside_live(row.perplexity_ratio_interval)]
    return Cell(units.number(row.perplexity), clauses([ratio, *standing]))


def _greedy(row: Compared) -> Cell | None:
    if row.greedy_same_median is None:
        return None
    return Cell(units.number(row.greedy_same_median), translated("of {count}").format(count=units.number(row.greedy_tokens_median)))


def _plain(key: str, show: Callable[[float], str] = units.number) -> Callable[[Compared], Cell | None]:
    """What shows a figure with its interval, where it has one."""

    def cell(row: Compared) -> Cell | None:
        value = getattr(row, key)
        interval = getattr(row, f"{key}_interval", None)
        return None if value is None else Cell(show(value), units.span(interval, show) if interval else "")

    return cell


_COLUMNS: tuple[tuple[str, Callable[[Compared], Cell | None]], ...] = (
    (to_translate("Perplexity"), _perplexity), (to_translate("KL, nats"), _plain("kl")),
    (to_translate("Agreement"), _plain("agreement", units.percent)), (to_translate("Same greedy tokens"), _greedy),
    (to_translate("Mean cosine"), _plain("cosine_mean", "{:.4f}".format)),
    (to_translate("Rank correlation"), _plain("rank_correlation", "{:.4f}".format)),
    (to_translate("Fine-tuning in it"), _plain("fine_tuning")),
    (to_translate("Lost to rounding"), _plain("rounding_share", units.percent)),
)  # fmt: skip

COLUMNS = frozenset(title for title, _ in _COLUMNS)
"""All that a table may have, by the names that the page's template asks for."""
FEW_TEXTS = 100
"""Below so many texts, a score says little: of 100, the standard error of an accuracy of 0.8 is 0.04."""
_SCORES = (
    (to_translate("Texts"), "texts"), (to_translate("Accuracy"), "accuracy"), (to_translate("Macro F1"), "macro_f1"),
    (to_translate("Exact match"), "exact_match"), ("chrF", "chrf"), ("BLEU", "bleu"),
)  # fmt: skip
_ANSWERS = (to_translate("Answers: agreement"), to_translate("Answers: KL"))


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
    nats = joined(list(dict.fromkeys(units.number(value) for value in divergences)))
    one_answer = worst.before is None  # of a whole text, which then stands below
    if one_answer:
        place = translated("KL {nats} nats").format(nats=nats)
    else:
        place = translated("prompt {number}, position {position}: KL {nats} nats")
        place = place.format(number=worst.number, position=worst.position + 1, nats=nats)
    same = [translated("the same choice with another probability")] if worst.live == worst.artifact else []
    before = f"{worst.prompt} → " if one_answer else worst.before or ""
    return Parting(
        names=tuple(artifact.variant for artifact in artifacts), where=clauses([place, *same]),
        before=before[-MOST:], live=visible(worst.live or ""),
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
            values[_ANSWERS[0]] = units.percent(marked.agreement)
        if marked and marked.kl is not None:
            values[_ANSWERS[1]] = units.number(marked.kl)
        scored.append((name, values))
    columns = [title for title in (*(title for title, _ in _SCORES), *_ANSWERS) if any(title in values for _, values in scored)]
    if not columns:
        return None
    texts = max((figures.texts or 0 for _, figures, _ in report.scored if figures), default=0)
    rows = tuple((name, tuple(values.get(title, "–") for title in columns)) for name, values in scored)
    return ScoreTable(tuple(map(translated, columns)), rows, texts if texts < FEW_TEXTS else 0)


@dataclass(frozen=True)
class TaskRow:
    """What one of the user's own tasks gave of an artifact, as text."""

    task: str
    variant: str
    value: str
    live: str
    difference: str
    limit: str


def tasks(report: Report) -> tuple[TaskRow, ...]:
    """A row for each task and artifact, the tasks in the order of the configuration; none where none was run."""
    rows = [(name, artifact.variant, figures) for artifact in report.artifacts for name, figures in artifact.measured.tasks.items()]
    order = list(dict.fromkeys(name for name, _, _ in rows))
    return tuple(_task(*row) for row in sorted(rows, key=lambda row: order.index(row[0])))


def _task(name: str, variant: str, figures: TaskFigures) -> TaskRow:
    title = bracketed(name, clauses([figures.metric, *([_items(figures.items)] if figures.items else [])])) if figures.metric else name
    if figures.failed is not None:
        return TaskRow(title, variant, units.number(figures.value), units.NOTHING, translated_text(figures.failed), units.NOTHING)
    apart = units.signed(figures.difference)
    apart = bracketed(apart, units.span(figures.interval, units.signed)) if figures.interval else apart
    limit = "" if figures.drop is None else units.number(figures.drop)
    undecided = bracketed(limit, translated("undecided")) if figures.undecided else limit
    return TaskRow(title, variant, units.number(figures.value), units.number(figures.live), apart, undecided or units.NOTHING)


def _items(count: int) -> str:
    return translated_plural("{count:,} item", "{count:,} items", count).format(count=count)
