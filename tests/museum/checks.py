"""The checks of the gate, listed from its code, and how each is taken out: what `judge` is given lacks it then."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import handlers.validate
from daemon.contract.formats.declaration import Limits
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures
from handlers.validate import findings
from handlers.validate.checks.examination import Examination
from handlers.validate.findings import Finding

ROOT = Path(handlers.validate.__file__).parent
MAKERS = ("Finding", "changed")
"""What makes a finding whose aspect is its first argument."""
FIGURES = {"share of the fine-tuning": "fine_tuning", "long text": "long", "pictures and sound": "media"}
"""A check of `judge` that is neither a limit nor a threshold → the figure that it goes by."""
GOES_BY = {"limit: merged": "finding: rare tokens"}
"""A check → another that goes by its limit, and is gone with it."""
RUNS = "it runs"
"""The check that an artifact can be run to the end, which `gate.Seen` knows."""


@dataclass(frozen=True)
class Given:
    """What `judge` decides by."""

    limits: Limits
    examination: Examination
    thresholds: Thresholds


Removal = Callable[[Given], Given]


def aspects() -> set[str]:
    """Return the aspect of every finding that the gate's code can make."""
    return {aspect for path in ROOT.rglob("*.py") for aspect in _aspects(ast.parse(path.read_text("utf-8")))}


def _aspects(tree: ast.Module) -> Iterator[str]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        maker = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        match call.args[:1]:
            case [ast.Constant(value=str(aspect))] if maker in MAKERS:
                yield aspect
            case [ast.Name(id=name)] if maker in MAKERS and isinstance(constant := getattr(findings, name, None), str):
                yield constant


def limits() -> set[str]:
    """Return the fields of `Limits` that are distances of the artifact from itself or from the merged model."""
    return {field.name for field in fields(Limits) if field.name in ("cache", "padding", "merged")}


@functools.cache
def checks() -> dict[str, Removal]:
    """Return each check by name, with what takes it out."""
    return {
        RUNS: lambda given: given,
        **{f"finding: {aspect}": _without_findings(aspect) for aspect in sorted(aspects())},
        **{f"threshold: {name}": _without_threshold(name) for name in Thresholds.model_fields},
        **{f"limit: {name}": _with_limit(name) for name in sorted(limits())},
        **{name: _without_figure(figure) for name, figure in FIGURES.items()},
    }


def gone(name: str) -> set[str]:
    """Return what is missing where a check is."""
    return {name, GOES_BY.get(name, name)}


def without(given: Given, *removals: Removal) -> Given:
    """Return what is left when checks are taken out."""
    for removal in removals:
        given = removal(given)
    return given


def _examined(given: Given, **changed: object) -> Given:
    return replace(given, examination=replace(given.examination, **changed))  # type: ignore[arg-type]


def _without_findings(aspect: str) -> Removal:
    def keeps(finding: Finding) -> bool:
        return finding.aspect != aspect

    return lambda given: _examined(given, findings=[*filter(keeps, given.examination.findings)])


def _without_threshold(name: str) -> Removal:
    """Take out the figure, as of a task that does not have it; every task has an error."""
    never = 0.0 if name == "agreement" else math.inf

    def taken(given: Given) -> Given:
        given = replace(given, thresholds=given.thresholds.model_copy(update={name: never}))
        absent = [figure for figure in (name, f"{name}_interval") if figure in CheckFigures.model_fields and name != "error"]
        return without(given, *(_without_figure(figure) for figure in absent))

    return taken


def _with_limit(name: str) -> Removal:
    return lambda given: replace(given, limits=replace(given.limits, **{name: None if name == "merged" else math.inf}))


def _without_figure(name: str) -> Removal:
    return lambda given: _examined(given, figures=given.examination.figures.plus(**{name: None}))
