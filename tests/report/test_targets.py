"""What the report recommends at each target of `export.deploy`, by the figures, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import JobFacts, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.report.content.build import build
from handlers.report.model import Report, TargetChoice
from handlers.report.pages import html, readme
from tests.formats.installed import nothing_for
from tests.report.facts import check, context, failed_int8, made_all, rejected_int8, succeeded, unverified

VARIANTS = ("pytorch", "onnx", "onnx-int8")


def work(*targets: Any) -> Work:
    return Work(export=ExportOptions(variants=VARIANTS, deploy=targets), validation=ValidateOptions())


def report_of(facts: JobFacts, tmp_path: Path) -> Report:
    return build(context(facts, tmp_path))


def told(facts: JobFacts, tmp_path: Path) -> dict[str, TargetChoice]:
    return {one.target: one for one in report_of(facts, tmp_path).recommendation.targets}


def test_each_target_gets_one_artifact_by_its_rule(tmp_path: Path) -> None:  # R10
    found = told(succeeded(work=work("edge", "cpu-server", "nvidia")), tmp_path)
    assert {target: one.variant for target, one in found.items()} == {
        "cpu-server": "onnx-int8", "nvidia": "pytorch", "edge": "onnx-int8",
    }  # fmt: skip
    assert found["cpu-server"].sentence.startswith("onnx-int8: the fastest of the 3 that fit and passed: 4.8 × as fast as PyTorch")
    assert found["edge"].sentence.startswith("onnx-int8: the smallest of the 2 that fit and passed")
    assert found["nvidia"].sentence.endswith("; not run on a GPU here.")


def test_of_artifacts_about_as_fast_a_server_gets_the_closest_one(tmp_path: Path) -> None:
    facts = made_all(
        check("pytorch"), check("onnx", speed_over_pytorch=4.5, kl=1e-5), check("onnx-int8", speed_over_pytorch=4.8, kl=0.02),
        work=work("cpu-server"),
    )  # fmt: skip
    one = told(facts, tmp_path)["cpu-server"]
    assert one.variant == "onnx"
    assert "within 10 % of the fastest (onnx-int8), and closer to the live model" in one.sentence


def test_what_is_no_faster_for_sure_is_not_called_the_fastest(tmp_path: Path) -> None:
    """The ranges of their turns overlap: onnx may be as fast."""
    facts = made_all(
        check("pytorch"), check("onnx", speed_over_pytorch=4.0, speed_over_pytorch_range=[3.5, 4.9], kl=0.02),
        check("onnx-int8", speed_over_pytorch=4.8, speed_over_pytorch_range=[3.9, 5.2], kl=0.02), work=work("cpu-server"),
    )  # fmt: skip
    choice = told(facts, tmp_path)["cpu-server"]
    assert choice.variant == "onnx-int8"
    said = "onnx-int8: measured as the fastest, though onnx may be as fast, and smaller, and no difference in closeness to the live model"
    assert choice.sentence.startswith(said) and "the fastest of the" not in choice.sentence


def test_the_fastest_is_so_of_those_whose_speed_was_measured(tmp_path: Path) -> None:
    facts = made_all(
        check("pytorch"), check("onnx", speed_over_pytorch=None, tokens_per_second=None), check("onnx-int8", speed_over_pytorch=4.8),
        work=work("cpu-server"),
    )  # fmt: skip
    assert "the fastest of the 2 whose speed was measured: 4.8 ×" in told(facts, tmp_path)["cpu-server"].sentence


def test_two_artifacts_that_the_figures_do_not_tell_apart_are_called_equal(tmp_path: Path) -> None:
    same: dict[str, Any] = {"speed_over_pytorch": 3.0, "kl": 0.01}
    one = told(made_all(check("pytorch"), check("onnx", **same), check("onnx-int8", **same), work=work("cpu-server")), tmp_path)
    assert one["cpu-server"].equal in (("onnx",), ("onnx-int8",))
    assert "by the figures, onnx" in one["cpu-server"].sentence and "is equal" in one["cpu-server"].sentence


def test_a_target_for_which_nothing_passed_says_what_failed(tmp_path: Path) -> None:
    facts = made_all(
        check("pytorch"), check("onnx", Verdict.FAILED, kl=1.0), check("onnx-int8", Verdict.FAILED, kl=2.0), work=work("edge", "nvidia")
    )
    found = told(facts, tmp_path)
    assert found["edge"].variant is None and found["nvidia"].variant == "pytorch"
    assert found["edge"].sentence == ("Nothing that fits passed: onnx and onnx-int8 failed (agreement 0.71 is below 0.85).")


@pytest.mark.parametrize("facts", [rejected_int8, failed_int8])
def test_what_failed_is_not_recommended_anywhere(facts: Any, tmp_path: Path) -> None:
    assert all(one.variant != "onnx-int8" for one in told(facts(), tmp_path).values())


def test_what_could_not_be_checked_is_not_recommended(tmp_path: Path) -> None:
    facts = unverified()
    asked = facts.model_copy(update={"work": Work(export=work("browser").export, validation=facts.work.validation)})
    assert "could not be checked" in told(asked, tmp_path)["browser"].sentence
    assert told(facts, tmp_path / "b") == {}, "without export.deploy only targets for which something passed are told"


@pytest.fixture
def no_ios() -> Iterator[None]:
    with nothing_for("ios"):
        yield


@pytest.mark.usefixtures("no_ios")
def test_a_target_that_no_installed_format_fits_says_what_is_missing(tmp_path: Path) -> None:
    one = told(succeeded(work=work("ios", "edge")), tmp_path)["ios"]
    assert one.variant is None
    assert "no installed format declares it" in one.sentence


@pytest.mark.usefixtures("no_ios")
def test_the_page_and_the_card_have_one_row_for_targets_with_the_same_answer(tmp_path: Path) -> None:
    report = report_of(succeeded(work=work("android", "edge", "ios")), tmp_path)
    page, card = html.render(report), readme.render(report)
    assert page.count("android, edge") == card.count("android, edge") == 1
    assert "What to deploy where" in page and "| To be deployed at |" in card
    assert "o installed format declares it" in page and "o installed format declares it" in card
