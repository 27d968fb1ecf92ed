"""The table of base, live model and artifacts, and the places where they part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.contract import units
from daemon.contract.jobs.figures import Statistics, figures_of
from daemon.contract.jobs.messages import JobFacts
from handlers.report import comparison
from handlers.report.pages import distributions
from tests.report import facts
from tests.report.facts import report_of
from tests.report.test_page import Page, page_of

UNMEASURED = dict.fromkeys(
    ("texts", "statistics", "perplexity", "kl_interval", "agreement_interval", "fine_tuning", "fine_tuning_interval", "worst")
)


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
    report = report_of(facts.succeeded(), tmp_path / "work")
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
    report = report_of(job, tmp_path / "work")
    table = comparison.table(report.comparison)
    assert table.columns == ("Agreement", "Mean cosine", "Rank correlation", "Fine-tuning in it")
    assert table.rows[0][0] == "live model, fine-tuned"
    assert "There is no base to compare with: the checkpoint is a full fine-tune." in Page(page_of(job, tmp_path / "page")).text


def test_artifacts_of_which_no_intervals_were_measured_have_no_table(tmp_path: Path) -> None:
    job = facts.made_all(*(facts.check(name, **UNMEASURED) for name in ("pytorch", "onnx", "onnx-int8")))
    assert report_of(job, tmp_path / "work").comparison.rows == ()
    assert "Base, live model and artifacts" not in page_of(job, tmp_path / "page")


def test_the_place_where_an_artifact_is_farthest_is_shown_only_where_there_is_something_to_see(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path / "work")
    (found,) = comparison.partings(report)
    assert found.names == ("onnx-int8",) and (found.live, found.artifact) == (" lit", " out")
    assert found.where == "prompt 2, position 15: KL 0.31 nats" and found.before.endswith("the lamp was")
    text = page_of(facts.succeeded(), tmp_path / "page")
    assert "the lamp was<mark> lit</mark>" in text and "the lamp was<mark> out</mark>" in text


def test_a_wrong_label_stands_apart_from_its_text_and_has_no_position(tmp_path: Path) -> None:
    worst = {"number": 102, "kl": 0.2, "position": 0, "position_kl": 0.2, "prompt": "what a day", "live": "praise", "artifact": "blame"}
    job = facts.made_all(facts.check("pytorch"), facts.check("onnx"), facts.check("onnx-int8", worst=worst))
    (found,) = [one for one in comparison.partings(report_of(job, tmp_path / "work")) if one.artifact == "blame"]
    assert (found.where, found.before) == ("KL 0.2 nats", "what a day → ")


def test_the_differences_of_positions_stand_in_tables_with_llama_cpps_names(tmp_path: Path) -> None:
    groups = distributions.groups(report_of(facts.succeeded(), tmp_path / "work"))
    assert [group.title for group in groups] == [
        "KL divergence of a position (KLD), nats", "Change of the next token's probability (Δp)", "Choices and perplexity",
        "Mean KLD, by the probability of the live model's choice",
    ]  # fmt: skip
    divergences, changes, choices, ranges = (dict(group.rows)["onnx-int8"] for group in groups)
    wanted = figures_of(facts.statistics(0.3), Statistics)
    assert wanted and wanted.kld and wanted.delta_p and wanted.confident_flips and wanted.by_confidence
    assert divergences[0] == comparison.Cell(units.number(wanted.kld.mean), f"± {units.number(wanted.kld.standard_error)}")
    assert divergences[4].text == "–" and groups[0].columns[4] == "99.9 %"  # of 311 positions
    assert changes[2].text == f"{100 * wanted.delta_p.minimum:.3f} %" and groups[1].columns[2] == "Minimum"
    sure = wanted.confident_flips
    assert choices[3].text == f"{sure.flips} of {sure.positions}" and f"{sure.lost} lost, {sure.gained} gained" in choices[3].small
    assert len(ranges) == 5 and ranges[4].small.endswith(f"of {wanted.by_confidence[4].positions} flip")
    text = Page(page_of(facts.succeeded(), tmp_path / "page")).text
    assert "How the differences are distributed with the names of llama.cpp" in text and "Flips where sure" in text


def test_vectors_and_numbers_have_tables_of_their_own_and_older_figures_none(tmp_path: Path) -> None:
    spread = {"mean": 0.9991, "standard_error": 1e-4, "maximum": 1.0, "minimum": 0.981, "percentiles": {"50": 0.9993, "1": None}}
    for given, title in (({"cosine": spread}, "Cosine"), ({"error": spread, "correlation": 0.99, "rank_correlation": None}, "Error")):
        job = facts.made_all(*(facts.check(name, statistics=given) for name in ("pytorch", "onnx", "onnx-int8")))
        (group,) = distributions.groups(report_of(job, tmp_path / title))
        assert group.title.startswith(title) and "Rank correlation" not in group.columns
    job = facts.made_all(*(facts.check(name, statistics=None) for name in ("pytorch", "onnx", "onnx-int8")))
    assert "How the differences are distributed" not in page_of(job, tmp_path / "page")
