"""Figures between stages: what a model writes, and what it makes of another version's or a damaged file's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from daemon.contract.jobs import verdicts
from daemon.contract.jobs.figures import (
    ArtifactFigures,
    CheckFigures,
    Likeness,
    LiveFigures,
    MergeFigures,
    ReferenceFigures,
    ReportFigures,
    SpeedFigures,
    figures_of,
    stage_figures,
)
from daemon.contract.jobs.messages import StageFacts, Verdict
from handlers.report.build import build
from handlers.report.html import render
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
    ("written", "model"), [({"base_bytes": "many"}, MergeFigures), ({"status": "odd"}, ReportFigures), ({"speed": [1]}, SpeedFigures)]
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
