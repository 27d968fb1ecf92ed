"""This run so far: the divergence and the quality of each variant by step, and which checkpoint to deploy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from daemon.contract import units
from daemon.contract.advice.which import as_of_report
from daemon.contract.jobs.messages import JobFacts
from daemon.contract.jobs.points import RunFigures, StepPoint
from daemon.contract.jobs.run_figures import point_of
from handlers.report.content.build import build
from handlers.report.model import Report
from handlers.report.pages import charts, html, readme
from handlers.report.stage import as_json
from tests.report.facts import check, checkpoint, context, made_all, succeeded

PROMPTS = {"prompts": ["a", "b"]}


def measured(perplexity: float, run: RunFigures | None, step: int = 60) -> JobFacts:
    """An export whose reference names its texts, and whose int8 form has this perplexity."""
    small = check("onnx-int8", kl=0.011, perplexity=perplexity)
    plain = check("pytorch", kl=0.0, perplexity=None), check("onnx", perplexity=None)
    facts = made_all(*plain, small, run=run, checkpoint=checkpoint(step=step))
    stages = tuple(
        one.model_copy(update={"result": one.result.model_copy(update={"figures": {**one.result.figures, **PROMPTS}})})
        if one.name == "reference" and one.result else one
        for one in facts.stages
    )  # fmt: skip
    return facts.model_copy(update={"stages": stages, "export_id": f"run-{step}"})


def report_of(facts: JobFacts, tmp_path: Path) -> Report:
    return build(context(facts, tmp_path))


def told(report: Report) -> StepPoint:
    """What the daemon reads from it for the exports that follow."""
    found = point_of(json.loads(as_json(report)))
    assert found is not None
    return found


def test_the_report_tells_the_run_and_which_checkpoint_to_deploy(tmp_path: Path) -> None:
    first = report_of(measured(8.1, None, step=30), tmp_path / "a")
    second = report_of(measured(8.4, RunFigures(points=(told(first),), trainers_best=60)), tmp_path / "b")
    assert first.run_so_far is None or first.run_so_far.points == (), "the first export has nothing to be compared with"
    run = second.run_so_far
    assert run is not None and (run.best, run.best_step, run.variant, run.metric) == ("run-30", 30, "onnx-int8", "perplexity")
    assert [point.step for point in run.points] == [30, 60]
    loss = second.checkpoint.metadata.get("loss")
    assert loss is None and run.sentence == (
        "The trainer's best is step 60; by the perplexity of onnx-int8, step 30 is the best of 2 exports: 8.1 against 8.4 of step 60"
        f" (1.04 ×, 1.04 to 1.04, 300 tokens of 6 texts). Deploy step 30, {told(first).recommended}."
    )
    assert "step 30 is the best of 2 exports: 8.1 against 8.4 of step 60" in readme.render(second)
    assert second.recommendation.sentence.startswith("Of this export deploy onnx")
    assert second.recommendation.sentence.endswith("; as of this report, another export of the run is to be deployed: step 30.")
    page = html.render(second)
    assert second.recommendation.best is not None
    assert 0 < page.index(f"<b>{second.recommendation.best.variant}</b>") < page.index("step 30 is the best of 2"), "its own comes first"
    assert "step 30 is the best of 2 exports" in page.split("This run so far")[0], "where it says what to deploy"
    assert "This run so far" in page and "Perplexity by step" in page and "Divergence by step" in page


def test_an_export_that_no_difference_is_seen_from_is_not_called_worse_than_another(tmp_path: Path) -> None:
    first = report_of(measured(8.1, None, step=30), tmp_path / "a")
    again = report_of(measured(8.1, RunFigures(points=(told(first),))), tmp_path / "b")
    run = again.run_so_far
    assert run is not None and run.best_step == 60 and again.recommendation.sentence.startswith("Deploy onnx")
    assert (
        "no difference seen between the 2 exports with 300 tokens of 6 texts; step 60 has the best figure (8.1); `validate.data`"
        in run.sentence
    )
    assert run.sentence not in html.render(again).split("This run so far")[0]


def words_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page.partition("This run so far")[0]).replace("&#39;", "'").split())


def test_pages_of_a_run_do_not_recommend_each_other_in_a_circle(tmp_path: Path) -> None:
    """Each was written when the other one was the best. Both stay as they are, so what they say of the run is dated, and names what says
    it now."""
    other = {step: told(report_of(measured(8.0, None, step=step), tmp_path / f"{step}")) for step in (30, 60)}
    for own, best in ((30, 60), (60, 30)):
        folders = {f"run-{best}": f"../step-{best}"}
        run = RunFigures(points=(other[best],), folders=folders, trainers_best=best)
        report = report_of(measured(8.4, run, step=own), tmp_path / f"again-{own}")
        assert report.run_so_far is not None and report.run_so_far.best_step == best
        for page in (words_of(html.render(report)), " ".join(readme.render(report).replace("\\", "").split())):
            assert "`" in page or "ckptd quality" in page
            when = f"Of the run's 2 exports, as of this report ({units.moment(report.finished)}):"
            dated = page.replace(f"{when} {report.run_so_far.sentence} ", "AS OF ")
            assert dated != page and f"ckptd quality {report.checkpoint.run}" in dated.partition("AS OF ")[2][:60]
            for clause in re.split(r"[.;]|step before|step after", dated, flags=re.IGNORECASE):
                assert "deploy" not in clause or str(best) not in re.findall(r"step (\d+)", clause) or "as of this report" in clause, clause


def test_the_first_export_names_what_says_it_of_the_run(tmp_path: Path) -> None:
    report = report_of(measured(8.1, None), tmp_path)
    assert report.run_so_far is None
    said = f"Which export of the run to deploy: `ckptd quality {report.checkpoint.run}` says what holds now."
    assert said.replace("`", "") in words_of(html.render(report)).replace(" says", " says").replace("  ", " ").replace("`", "")
    assert said in readme.render(report).replace("\\", "")


@pytest.mark.parametrize(("run", "command"), [("a b", "ckptd quality 'a b'"), ("a`b", "ckptd quality RUN"), ("-x", "ckptd quality RUN")])
def test_a_command_names_a_run_as_a_shell_takes_it(run: str, command: str) -> None:
    assert f" `{command}` says" in as_of_report("Deploy step 3.", run)


def test_without_other_exports_there_is_no_such_section(tmp_path: Path) -> None:
    page = html.render(report_of(succeeded(), tmp_path))
    assert "This run so far" not in page and "by step" not in page


def test_a_line_is_drawn_for_each_variant_with_figures_at_two_steps(tmp_path: Path) -> None:
    point = told(report_of(measured(8.1, None, step=30), tmp_path / "a"))
    alone = point.model_copy(update={"export": "x", "step": 10, "artifacts": {**point.artifacts, "gone": point.artifacts["onnx"]}})
    report = report_of(measured(8.4, RunFigures(points=(alone, point))), tmp_path / "b")
    divergence, quality = charts.run_lines(report)
    assert [one.label for one in divergence.series] == ["pytorch", "onnx", "onnx-int8"]
    assert [one.label for one in quality.series] == ["onnx-int8"]
    ((_, *_, (x, y, text)),) = (one.dots for one in quality.series)
    assert (x, y, text) == (100.0, 0.0, "onnx-int8, step 60: 8.4"), "the last step at the right, the largest value at the top"
    assert "logarithmic" in divergence.about and (quality.low, quality.high) == ("8.1", "8.4")


def test_hostile_names_of_variants_do_not_break_the_page(tmp_path: Path) -> None:
    point = told(report_of(measured(8.1, None, step=30), tmp_path / "a"))
    odd = {"<script>alert(1)</script>": point.artifacts["onnx"]}
    both = tuple(point.model_copy(update={"export": f"x{step}", "step": step, "artifacts": odd}) for step in (10, 20))
    page = html.render(report_of(measured(8.4, RunFigures(points=both)), tmp_path / "b"))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
