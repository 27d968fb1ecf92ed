"""A report leads to the run's other exports, as far as they were there, by addresses that hold in a copy of the run's folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import JobFacts
from daemon.contract.jobs.points import ArtifactPoint, RunFigures, StepPoint
from handlers.report.content.build import build
from handlers.report.content.neighbours import neighbours
from handlers.report.model import Report
from handlers.report.pages import html
from handlers.report.stage import as_json
from tests.report import facts
from tests.report.facts import END

PASSED = {"onnx": ArtifactPoint(verdict="passed", published=True)}


def point(step: int, **changes: Any) -> StepPoint:
    return StepPoint(
        **{"export": f"e{step}", "step": step, "status": "succeeded", "finished": facts.at(step), "artifacts": PASSED, **changes}
    )


def report_of(run: RunFigures | None, folder: Path, job: JobFacts | None = None) -> Report:
    return build(facts.context((job or facts.succeeded()).model_copy(update={"run": run}), folder), END)


def addresses(report: Report) -> dict[str, str]:
    """The links at the top of the page: text → address."""
    around = html.render(report).partition("<nav")[2].partition("</nav>")[0]
    return {text: address for address, text in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', around)}


def test_the_steps_around_and_the_links_of_the_run_are_linked(tmp_path: Path) -> None:
    points = (point(20), point(40), point(80, status="partial"), point(100))
    folders = {f"e{step}": f"../step-{step}" for step in (20, 40, 80, 100)}
    run = RunFigures(points=points, folders=folders, latest="../latest", best="../best")
    assert addresses(report_of(run, tmp_path)) == {
        "Step before: 40": "../step-40/report.html", "Step after: 80 (partial)": "../step-80/report.html",
        "Newest step": "../latest/report.html", "Best step": "../best/report.html", "All exports here": "../",
    }  # fmt: skip


def words(report: Report) -> str:
    """What the top of the page says."""
    around = html.render(report).partition("<nav")[2].partition("</nav>")[0].partition(">")[2]
    return " ".join(re.sub(r"<[^>]*>", " ", around).split())


def test_what_may_change_is_dated_and_the_newest_step_does_not_lead_to_itself(tmp_path: Path) -> None:
    run = RunFigures(points=(point(20), point(80)), folders={"e20": "../step-20"}, latest="../latest", best="../best")
    dated = "As of this report: Step before: 20 This step is the one to deploy"
    assert words(report_of(run, tmp_path)) == f"{dated} A newer step, if there is one by now Best step All exports here"
    later = run.model_copy(update={"folders": {"e80": "../step-80"}})
    assert words(report_of(later, tmp_path)) == f"{dated.replace('before: 20', 'after: 80')} Newest step Best step All exports here"


def test_what_is_not_there_is_not_linked(tmp_path: Path) -> None:
    run = RunFigures(points=(point(20), point(40), point(50, kept=False)), folders={"e20": "../step-20", "e50": "../step-50"})
    assert addresses(report_of(run, tmp_path)) == {"Step before: 20": "../step-20/report.html", "All exports here": "../"}
    assert addresses(report_of(None, tmp_path)) == {"All exports here": "../"}


@pytest.mark.parametrize(("job", "expected"), [(facts.succeeded(), "../latest"), (facts.failed_merge(), None)])
def test_a_first_export_leads_to_later_ones_if_it_will_be_the_newest_itself(job: JobFacts, expected: str | None, tmp_path: Path) -> None:
    """The link is made after its report; a run without a good export gets none."""
    assert report_of(RunFigures(latest="../latest"), tmp_path, job).neighbours.latest_link == expected


def test_the_step_to_deploy_is_named_where_it_is_known(tmp_path: Path) -> None:
    run = RunFigures(points=(point(20), point(40)), folders={"e20": "../step-20", "e40": "../step-40"})
    own = report_of(run, tmp_path)

    def with_best(export: str | None) -> Report:
        around = neighbours(run, json.loads(as_json(own)), export)
        return own.model_copy(update={"neighbours": around})

    assert "Step to deploy: 20" in addresses(with_best("e20"))
    assert "Step before: 40, to deploy" in addresses(with_best("e40"))
    assert words(with_best(own.export_id)).startswith("As of this report: Step before: 40 This step is the one to deploy")
    assert "to deploy" not in html.render(with_best(None)).partition("</nav>")[0]


@pytest.mark.parametrize("name", ["a b#c?d", "javascript:alert(1)", '"><b>', "ä"])
def test_no_name_of_a_folder_makes_another_address_of_it(name: str, tmp_path: Path) -> None:
    run = RunFigures(points=(point(40),), folders={"e40": f"../{name}"})
    address = addresses(report_of(run, tmp_path))["Step before: 40"]
    assert re.fullmatch(r"\.\./[\w.%-]+/report\.html", address)


def test_a_folder_whose_name_is_no_text_is_left_out(tmp_path: Path) -> None:
    run = RunFigures(points=(point(40),), folders={"e40": "../step\udcff"}, latest="../latest\udcff", best="../\udcff")
    assert addresses(report_of(run, tmp_path)) == {"All exports here": "../"}
