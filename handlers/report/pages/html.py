"""`report.html`: one self-contained page for the person on call. Called by `handlers.report.stage`.

The page loads nothing and runs nothing; its templates are report.html, charts.html, details.html and report.css. All
that comes from outside is escaped by the engine, and a content security policy forbids the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from daemon.contract import units
from daemon.contract.language.catalog import language, translated
from daemon.contract.language.lists import clauses, names, sentences
from daemon.contract.language.pages import coded, in_page, many_in_page
from daemon.contract.language.recorded import translated_text
from daemon.contract.values import Json
from handlers.report import comparison, lengths, samples
from handlers.report.advice import headline
from handlers.report.advice.targets import rows as target_rows
from handlers.report.content.places import KEPT, without_folders
from handlers.report.model import Failure, Neighbour, Report
from handlers.report.pages import caveats, charts, decided, distributions
from handlers.report.usage import word


@cache
def environment() -> Environment:
    """The template engine with the report's filters; texts of .html templates are escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(enabled_extensions=("html",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters.update(units.FILTERS, flat=_flat, word=word, coded=coded, said=translated, recorded=_recorded, method=_method)
    made.globals.update(
        translated=in_page, translated_plural=many_in_page, language=language, names=names, clauses=clauses, sentences=sentences,
        cells=samples.cells, prompt_shown=samples.prompt_shown,
    )  # fmt: skip
    return made


def _method(kind: str) -> str:
    """PEFT's name of a method as its authors write it."""
    return {"LORA": "LoRA", "ADALORA": "AdaLoRA"}.get(kind, kind)


def _recorded(value: object, name: str = "") -> object:
    """A recorded value: where it is a sentence, in the reader's language. `name`: its dotted name; what models read and write stays."""
    return translated_text(value) if isinstance(value, str) and KEPT.isdisjoint(name.split(".")) else value


def render(report: Report) -> str:
    """The page of a report. Raises nothing for missing figures: they are shown as "–" or left out."""
    around, report = links(report), without_folders(report)
    notes = caveats.notes(report)
    return environment().get_template("report.html").render(
        report=report,
        links=around,
        shown_samples=samples.different_first(report.samples),
        title=headline.title_line(report),
        of_run=headline.of_run_in_words(report),
        places=target_rows(report),
        failures=roots(report),
        unsettled={failure.variant for failure in report.failures} - {story.asked for story in report.replaced if story.taken},
        notes=notes,
        marks={name: [note.number for note in notes if name in note.about] for note in notes for name in note.about},
        sizes=charts.size_bars(report),
        speeds=charts.speed_bars(report),
        distances=charts.limit_rows(report),
        limit_at=charts.limit_position(1.0),
        timeline=charts.timeline(report),
        loss=charts.loss_curve(report),
        run_lines=charts.run_lines(report),
        lengths=[*decided.sentences(report), *lengths.sentences(report)],
        decided=decided.rows(report),
        compared=comparison.table(report.comparison),
        partings=comparison.partings(report),
        scores=comparison.scores(report),
        distributions=distributions.groups(report),
        tasks=comparison.tasks(report),
    )  # fmt: skip


@dataclass(frozen=True)
class Link:
    """A link to another report of the run."""

    text: str
    address: str
    """Relative, with what a browser would read otherwise escaped."""
    relation: str = ""
    """`prev` or `next`, where it is that."""
    dated: bool = False
    """Whether it says what was so when the report was written."""


def links(report: Report) -> tuple[Link, ...]:
    """The run's other exports, as far as they were there when the report was written; the rest is reached by the run's own links."""
    around = report.neighbours
    best = around.best
    shown = [
        _link(translated("Step before: {step}"), around.before, best, "prev"),
        _link(translated("Step after: {step}"), around.after, best, "next"),
    ]  # fmt: skip
    if best not in (None, around.before, around.after):
        shown.append(_link(translated("Step to deploy: {step}"), best, None))
    # A link of the run moves: where this step is itself the newest, it leads to those that come.
    newest = translated("A newer step, if there is one by now") if around.after is None else translated("Newest step")
    for text, path in ((newest, around.latest_link), (translated("Best step"), around.best_link)):
        shown.append(Link(text, _address(path)) if path else None)
    return tuple(link for link in shown if link)


def _link(text: str, other: Neighbour | None, best: Neighbour | None, relation: str = "") -> Link | None:
    if other is None:
        return None
    step = (translated("end, {step}") if other.ending else "{step}").format(step=other.step)
    if other.status not in ("", "succeeded"):
        step = translated("{step} ({state})").format(step=step, state=translated(other.status))
    chosen = [translated("to deploy")] if other == best else []
    return Link(text.format(step=clauses([step, *chosen])), _address(other.path), relation, dated=True)


def _address(path: str) -> str:
    """The report in a folder. Escaped, so that no name can make an address of another kind of it."""
    return f"{quote(path)}/report.html"


@dataclass(frozen=True)
class Root:
    """One cause, with everything that failed for it."""

    names: tuple[str, ...]
    """The stages, or the artifacts that were found wrong."""
    first: Failure
    also: tuple[str, ...]
    """The other failures' sentences, without the cause."""


def roots(report: Report) -> tuple[Root, ...]:
    """The failures by their root: same code, same cause, same remedy."""
    grouped: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in report.failures:
        grouped.setdefault((failure.code, failure.cause or failure.sentence, failure.remedy), []).append(failure)
    return tuple(
        Root(
            names=tuple(dict.fromkeys(failure.variant or failure.source for failure in failures)),
            first=failures[0],
            also=tuple(dict.fromkeys(_without_cause(failure) for failure in failures[1:] if failure.sentence != failures[0].sentence)),
        )
        for failures in grouped.values()
    )


def _without_cause(failure: Failure) -> str:
    sentence, cause = (text.removesuffix(".").removesuffix("。") for text in (failure.sentence, failure.cause))
    sentence = sentence.removesuffix(cause).rstrip().rstrip(":：")
    return translated("{sentence}.").format(sentence=sentence)


def _flat(value: Json, prefix: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested mappings as (dotted name, value)."""
    rows: list[tuple[str, Any]] = []
    for name, item in value.items():
        dotted = f"{prefix}{name}"
        rows += _flat(item, f"{dotted}.") if isinstance(item, dict) and item else [(dotted, item)]
    return rows
