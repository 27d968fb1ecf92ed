"""Every figure may be missing: of another version, of another task, of a stage that failed. The report and its pages are written."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.contract.jobs.messages import JobFacts
from handlers.report import html, readme
from handlers.report.build import build
from tests.report import facts

TEXTS = {
    "sources": {"built-in texts": 6}, "texts": 6, "tokens": 700, "shortest": 8, "median": 90, "p95": 300, "longest": 301, "cut": 2,
    "scripts": {"Latin": 0.93}, "unknown_share": 0.004, "byte_share": 0.1, "different_tokens": 210, "vocabulary_share": 0.0014,
    "digest": "ab" * 32,
}  # fmt: skip
SCORES = {"texts": 6, "accuracy": 0.9, "macro_f1": 0.8, "exact_match": 0.5, "chrf": 71.0, "bleu": 30.0}


@functools.cache
def whole() -> JobFacts:
    """An export whose stages said all that they can say."""
    job = facts.succeeded()
    stages = []
    for stage in job.stages:
        result = stage.result
        if result is not None and stage.name == "reference":
            live = {**result.figures.get("reference", {}), "scores": SCORES, "base_scores": SCORES}
            result = result.model_copy(update={"figures": {**result.figures, "reference": live, "texts": TEXTS}})
        if result is not None and result.checks:
            marked = {"scores": SCORES, "completion": {"positions": 9, "agreement": 0.9, "kl": 0.01}}
            checks = tuple(check.model_copy(update={"figures": {**check.figures, **marked}}) for check in result.checks)
            result = result.model_copy(update={"checks": checks})
        stages.append(stage.model_copy(update={"result": result}))
    stages.append(facts.done("onnx-int8-static", 90, 3, figures={"calibration": TEXTS}))
    return job.model_copy(update={"stages": tuple(stages)})


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of nested objects and lists of objects."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, one in inner for path in ([(*above, key)] if isinstance(value, dict) else []) + paths(one, (*above, key))]


def without(value: Any, path: tuple[Any, ...]) -> None:
    """Remove a key, if what lies above it is still there."""
    for key in path[:-1]:
        if not isinstance(value, dict | list) or (isinstance(value, dict) and key not in value):
            return
        value = value[key]
    if isinstance(value, dict):
        value.pop(path[-1], None)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
def test_reports_and_pages_are_written_whatever_is_missing(tmp_path: Path, data: st.DataObject) -> None:
    plain = whole().model_dump(mode="json")
    places = [
        (number, "result", "figures", *path)
        for number, stage in enumerate(plain["stages"])
        if stage["result"]
        for path in paths(stage["result"]["figures"])
    ]
    places += [
        (number, "result", "checks", which, "figures", *path)
        for number, stage in enumerate(plain["stages"])
        for which, check in enumerate(stage["result"]["checks"] if stage["result"] else ())
        for path in paths(check["figures"])
    ]
    everywhere = {place[-1] for place in places if isinstance(place[-1], str)}
    gone = data.draw(st.sets(st.sampled_from(sorted(everywhere)), max_size=6))
    single = data.draw(st.lists(st.sampled_from(places), max_size=6))
    for place in [*(place for place in places if place[-1] in gone), *single]:
        without(plain["stages"], place)
    report = build(facts.context(JobFacts.model_validate(plain), tmp_path))
    assert html.render(report).endswith("</html>\n") or "</html>" in html.render(report)
    assert readme.render(report)
