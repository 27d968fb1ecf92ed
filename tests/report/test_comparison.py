"""The table of base, live model and artifacts, and the places where they part."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import JobFacts
from handlers.report import comparison
from handlers.report.content.build import build
from handlers.report.model import Report
from tests.report import facts
from tests.report.test_page import Page, page_of

END = facts.BEGIN + timedelta(seconds=96)
UNMEASURED = dict.fromkeys(("texts", "perplexity", "kl_interval", "agreement_interval", "fine_tuning", "fine_tuning_interval", "worst"))


def _report(job: JobFacts, folder: Path) -> Report:
    return build(facts.context(job, folder), END)


def _reference(job: JobFacts, **figures: Any) -> JobFacts:
    """The same job with other figures of the live model."""
    stages = []
    for stage in job.stages:
        if stage.name == "reference" and stage.result:
            changed = {**stage.result.figures, "reference": {**facts.REFERENCE, **figures}}
            stage = stage.model_copy(update={"result": stage.result.model_copy(update={"figures": changed})})
        stages.append(stage)
    return job.model_copy(update={"stages": tuple(stages)})


def test_base_live_model_and_artifacts_stand_in_one_table_with_intervals(tmp_path: Path) -> None:
    report = _report(facts.succeeded(), tmp_path / "work")
    assert [row.name for row in report.comparison.rows] == ["base", "live", "pytorch", "onnx", "onnx-int8"]
    base, live = report.comparison.rows[:2]
    assert base.kl_interval == (0.051, 0.122) and base.fine_tuning is None
    assert live.perplexity == 14.25 and live.kl is None
    text = Page(page_of(facts.succeeded(), tmp_path / "page")).text
    assert "base, without fine-tuning 21.7 1.52 × (1.31 to 1.79) 0.0837 0.051 to 0.122 57.9 % 52 % to 63 % 2 of 24 –" in text
    assert "311 positions of 6 prompts" in text and "from so few, it is rough" in text


def test_a_column_that_no_model_has_a_figure_for_is_left_out(tmp_path: Path) -> None:
    checks = [facts.check(name, cosine_mean=0.99987, rank_correlation=0.9991, **dict.fromkeys(("perplexity", "greedy_same_median", "kl")))
              for name in ("pytorch", "onnx", "onnx-int8")]  # fmt: skip
    job = _reference(facts.made_all(*checks), adapter=None, perplexity=None, no_base="the checkpoint is a full fine-tune")
    report = _report(job, tmp_path / "work")
    table = comparison.table(report.comparison)
    assert table.columns == ("Agreement", "Mean cosine", "Rank correlation", "Fine-tuning in it")
    assert table.rows[0][0] == "live model, fine-tuned"
    assert "There is no base to compare with: the checkpoint is a full fine-tune." in Page(page_of(job, tmp_path / "page")).text


def test_artifacts_of_which_no_intervals_were_measured_have_no_table(tmp_path: Path) -> None:
    job = facts.made_all(*(facts.check(name, **UNMEASURED) for name in ("pytorch", "onnx", "onnx-int8")))
    assert _report(job, tmp_path / "work").comparison.rows == ()
    assert "Base, live model and artifacts" not in page_of(job, tmp_path / "page")


def test_the_place_where_an_artifact_is_farthest_is_shown_only_where_there_is_something_to_see(tmp_path: Path) -> None:
    report = _report(facts.succeeded(), tmp_path / "work")
    (found,) = comparison.partings(report)
    assert found.names == ("onnx-int8",) and (found.live, found.artifact) == (" lit", " out")
    assert found.where == "prompt 2, position 15: KL 0.31 nats" and found.before.endswith("the lamp was")
    text = page_of(facts.succeeded(), tmp_path / "page")
    assert "the lamp was<mark> lit</mark>" in text and "the lamp was<mark> out</mark>" in text


def test_a_wrong_label_stands_apart_from_its_text_and_has_no_position(tmp_path: Path) -> None:
    worst = {"number": 102, "kl": 0.2, "position": 0, "position_kl": 0.2, "prompt": "what a day", "live": "praise", "artifact": "blame"}
    job = facts.made_all(facts.check("pytorch"), facts.check("onnx"), facts.check("onnx-int8", worst=worst))
    (found,) = [one for one in comparison.partings(_report(job, tmp_path / "work")) if one.artifact == "blame"]
    assert (found.where, found.before) == ("KL 0.2 nats", "what a day → ")
