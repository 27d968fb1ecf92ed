"""Figures between stages: what a model writes, and what it makes of another version's or a damaged file's."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.contract.jobs import verdicts
from daemon.contract.jobs.figures import (
    ArtifactFigures,
    CheckFigures,
    Figures,
    ForeignFigures,
    Likeness,
    LiveFigures,
    MergeFigures,
    ReferenceFigures,
    ReportFigures,
    Speed,
    SpeedFigures,
    figures_of,
    stage_figures,
    unreadable,
)
from daemon.contract.jobs.messages import JobFacts, StageFacts, Verdict
from handlers.report.content.build import MOST_NAMES, build
from handlers.report.content.sanitize import visible
from handlers.report.pages import readme
from handlers.report.pages.html import render
from handlers.report.stage import as_json
from tests.report import facts


def test_what_was_measured_and_is_none_is_written_and_what_was_not_measured_is_missing() -> None:
    figures = CheckFigures(agreement=None, kl=0.5).plus(greedy_identical=None)
    assert figures.written() == {"agreement": None, "kl": 0.5, "greedy_identical": None}
    assert figures.has("agreement", "greedy_identical") and not figures.has("agreement", "error_max")
    assert figures_of(figures.written(), CheckFigures) == figures


def test_a_figure_that_there_is_not_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="CheckFigures has no agreeement"):
        CheckFigures().plus(agreeement=1.0)


def test_the_written_object_holds_nested_figures_without_what_they_lack() -> None:
    figures = ReferenceFigures(reference=LiveFigures(dtype="float32", adapter=Likeness(kl=None)), prompts=("a",))
    assert figures.written() == {"reference": {"dtype": "float32", "adapter": {"kl": None}}, "prompts": ["a"]}


def test_a_value_of_another_kind_counts_as_missing_and_the_others_are_read() -> None:
    written = {"agreement": "high", "kl": 0.5, "positions": True, "sample": 3, "error_max": math.inf, "of_another_version": object()}
    found = figures_of(written, ArtifactFigures)
    assert found is not None and found.given == {"kl": 0.5, "error_max": math.inf}


@pytest.mark.parametrize("written", [None, [], "figures", 3])
def test_what_is_no_object_gives_none(written: Any) -> None:
    assert figures_of(written, CheckFigures) is None


@pytest.mark.parametrize(
    ("written", "model"), [({"engine": 5}, ForeignFigures), ({"status": "odd"}, ReportFigures), ({"speed": [1]}, SpeedFigures)]
)
def test_an_object_without_what_the_model_needs_gives_none(written: dict[str, Any], model: Any) -> None:
    assert figures_of(written, model) is None


def test_a_stage_without_a_result_has_no_figures() -> None:
    assert stage_figures(facts.job(StageFacts(name="merge", state="waiting")), "merge", MergeFigures) is None
    found = stage_figures(facts.succeeded(), "merge", MergeFigures)
    assert found is not None and found.base_bytes == facts.BASE_BYTES


def test_the_speed_of_an_artifact_stands_beside_what_its_check_measured() -> None:
    check = facts.check("onnx").model_copy(update={"figures": {"agreement": 1.0}})
    job = facts.made_all(check)
    timed = facts.done("speed", 90, 5, figures={"speed": {"onnx": {"tokens_per_second": 7.5, "speed_over_pytorch": None}}})
    judged = {one.variant: one.figures for one in verdicts.judge(job.model_copy(update={"stages": (*job.stages, timed)}))}
    assert judged["onnx"] == {"agreement": 1.0, "tokens_per_second": 7.5, "speed_over_pytorch": None}


def test_damaged_figures_of_every_stage_leave_a_report(tmp_path: Any) -> None:
    job = facts.made_all(facts.check("onnx", Verdict.PASSED, sample=7, needs=["x"], agreement={}))
    odd = {"base_bytes": [], "reference": {"adapter": 3, "dtype": 1}, "checked_on": "here", "bases": 1, "speed": {"onnx": 4}}
    stages = tuple(one.model_copy(update={"result": one.result and one.result.model_copy(update={"figures": odd})}) for one in job.stages)
    report = build(facts.context(job.model_copy(update={"stages": stages}), tmp_path))
    assert report.base.size_bytes is None and report.checked_on == {} and report.bases == {} and report.live == LiveFigures()
    onnx = next(one for one in report.artifacts if one.variant == "onnx")
    assert onnx.needs is None and onnx.measured.agreement is None and onnx.measured.kl == onnx.figures["kl"]
    assert "onnx" in render(report)


def test_a_damaged_figure_in_nested_figures_is_left_out_alone_and_named() -> None:
    speed = {"onnx": {"tokens_per_second": "fast", "prefill_seconds": 0.5}, "pytorch": {"tokens_per_second": 3.0}, "onnx-int8": 7}
    found = figures_of({"speed": speed}, SpeedFigures)
    assert found is not None
    assert found.speed == {"onnx": Speed(prefill_seconds=0.5), "pytorch": Speed(tokens_per_second=3.0)}
    assert unreadable({"speed": speed}, SpeedFigures) == ("speed.onnx-int8", "speed.onnx.tokens_per_second")


@pytest.mark.parametrize(
    ("written", "model", "names"),
    [
        ({"ranks": [4, "x"], "method": "LORA"}, MergeFigures, ("ranks",)),
        ({"foreign": {"failed": "no"}, "kl": 1.0}, CheckFigures, ("foreign",)),
        ({"task": "\udcff", "method": "LORA"}, MergeFigures, ("task",)),
        ({"speed": 3}, SpeedFigures, ("speed",)),
        ([], SpeedFigures, ("",)),
        ({"kl": 1.0, "of_another_version": object()}, CheckFigures, ()),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_a_name(written: Any, model: type[Figures], names: tuple[str, ...]) -> None:
    assert unreadable(written, model) == names


def test_the_base_in_the_report_keeps_what_can_be_read(tmp_path: Path) -> None:
    left = {name: value for name, value in facts.MERGE.items() if name != "changed_modules"} | {"parameters": "many"}
    job = with_figures(facts.succeeded(), {"merge": left})
    report = build(facts.context(job, tmp_path))
    assert (report.base.size_bytes, report.base.dtype, report.base.digest) == (facts.BASE_BYTES, "bfloat16", "ab" * 32)
    assert report.base.parameters is None
    assert [warned.text for warned in report.warnings if warned.source == "merge"] == [
        "Figures that can't be read count as missing: parameters. Nothing else is affected."
    ]


SPEEDS = {name: {"tokens_per_second": 6.5 * ratio, "prefill_seconds": 0.5, "pytorch_tokens_per_second": 6.5, "speed_over_pytorch": ratio}
          for name, ratio in (("pytorch", 1.0), ("onnx", 2.5), ("onnx-int8", 4.5))}  # fmt: skip
TEXTS = {
    "sources": {"built-in texts": 6}, "texts": 6, "tokens": 700, "shortest": 8, "median": 90, "p95": 300, "longest": 301, "cut": 2,
    "scripts": {"Latin": 0.93}, "unknown_share": 0.004, "byte_share": 0.1, "different_tokens": 210, "vocabulary_share": 0.0014,
    "digest": "ab" * 32,
}  # fmt: skip
SCORES = {"texts": 6, "accuracy": 0.9, "macro_f1": 0.8, "exact_match": 0.5, "chrf": 71.0, "bleu": 30.0}
WHOLE = {
    "merge": facts.MERGE, "speed": {"speed": SPEEDS}, "onnx-int8-static": {"calibration": TEXTS},
    "reference": {
        "reference": {**facts.REFERENCE, "scores": SCORES, "base_scores": SCORES}, "checked_on": facts.CHECKED_ON, "texts": TEXTS,
    },
}  # fmt: skip
"""Stage → all that it can say."""
MODELS: dict[str, type[Figures]] = {"merge": MergeFigures, "speed": SpeedFigures, "reference": ReferenceFigures}
Changes = list[tuple[tuple[str, ...], Any]]
"""Places in nested figures, and what comes there."""
BASE = {"base_bytes": "size_bytes", "parameters": "parameters", "base_dtype": "dtype", "base_digest": "digest"}
"""Figure of the merge → its name in the report's base."""


def timed() -> JobFacts:
    """An export that went well, with speeds and calibration texts."""
    job, more = facts.succeeded(), [facts.done(name, 90, 5, figures=WHOLE[name]) for name in ("onnx-int8-static", "speed")]
    return job.model_copy(update={"stages": (*job.stages, *more)})


def with_figures(job: JobFacts, figures: dict[str, Any]) -> JobFacts:
    """The same with other figures of some stages."""
    stages = tuple(
        one.model_copy(update={"result": one.result and one.result.model_copy(update={"figures": figures[one.name]})})
        if one.name in figures else one for one in job.stages
    )  # fmt: skip
    return job.model_copy(update={"stages": stages})


def places(value: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every entry of nested objects."""
    own = [above] if above else []
    return own + ([place for name in value for place in places(value[name], (*above, name))] if isinstance(value, dict) else [])


GONE = object()
ODD = st.one_of(
    st.just(GONE),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from([0, -1, 10**400, 1e308, 5e-324]) | st.floats()
        | st.text(st.characters(exclude_categories=())),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=5,
    ),
)  # fmt: skip
"""What takes a figure's place."""


def damaged(changes: Changes, whole: dict[str, Any]) -> dict[str, Any]:
    """The figures with other values in some places; places that are gone with what was around them stay so."""
    value = copy.deepcopy(whole)
    for place, odd in changes:
        inside = value
        for name in place[:-1]:
            inside = inside.get(name) if isinstance(inside, dict) else None  # type: ignore[assignment]
        if isinstance(inside, dict):
            if odd is GONE:
                inside.pop(place[-1], None)
            else:
                inside[place[-1]] = odd
    return value


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.lists(st.tuples(st.sampled_from([place for place in places(WHOLE) if len(place) > 1]), ODD), max_size=8))
def test_whatever_is_damaged_or_missing_the_report_is_built_and_what_is_intact_is_kept(changes: Changes, tmp_path: Path) -> None:
    figures = damaged(changes, WHOLE)
    report = build(facts.context(with_figures(timed(), figures), tmp_path))
    assert as_json(report) and render(report) and readme.render(report)

    def intact(*place: str) -> bool:
        return not any(place[: len(changed)] == changed or changed[: len(place)] == place for changed, _ in changes)

    shown = {one.variant: one.figures for one in report.artifacts}
    for variant, speed in SPEEDS.items():
        for name, value in speed.items():
            if intact("speed", "speed", variant, name):
                assert shown[variant][name] == value
    for name, shown_as in BASE.items():
        if intact("merge", name):
            assert getattr(report.base, shown_as) == facts.MERGE[name]
    if intact("reference", "reference", "dtype"):
        assert report.live.dtype == "float32"
    if intact("reference", "checked_on"):
        assert report.checked_on["vendor"] == "GenuineIntel"
    told = " ".join(warned.text for warned in report.warnings)
    for stage, model in MODELS.items():
        names = unreadable(figures.get(stage), model) if figures.get(stage) else ()
        assert all(visible(name) in told for name in names[:MOST_NAMES])


MORE = {"foreign": {"engine": "optimum"}, "cache_errors": {"decoder": 0.1}, "scores": SCORES, "completion": {"positions": 9, "kl": 0.01}}
CHECKED = facts.check("onnx", **MORE).figures


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.lists(st.tuples(st.sampled_from(places(CHECKED)), ODD), max_size=8))
def test_whatever_is_damaged_in_a_check_its_other_figures_are_read(changes: Changes, tmp_path: Path) -> None:
    figures = damaged(changes, CHECKED)
    job = facts.made_all(facts.check("onnx").model_copy(update={"figures": figures}), facts.check("pytorch"))
    report = build(facts.context(job, tmp_path))
    assert as_json(report) and render(report) and readme.render(report)
    onnx = next(one for one in report.artifacts if one.variant == "onnx")
    touched = {place[0] for place, _ in changes}
    for name, value in CHECKED.items():
        if name not in touched and not isinstance(value, dict):
            assert onnx.measured.written()[name] == value
