"""The report says what to deploy by one rule, and never names what failed or was not checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.report.advice.headline import recommend
from handlers.report.model import Report
from tests.report import facts
from tests.report.facts import report_of
from tests.report.test_page import Page, page_of


def chosen(report: Report) -> list[tuple[str, str]]:
    """(what it is, the artifact), the recommended one first."""
    said = report.recommendation
    return [(one.preference, one.variant) for one in ([said.best] if said.best else []) + list(said.others)]


def asked(*variants: str, **changes: Any) -> Work:
    return Work(export=ExportOptions(variants=variants), validation=ValidateOptions(**changes))


def test_the_fastest_that_passed_is_recommended_with_what_to_install_and_how_to_run_it(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path)
    assert report.recommendation.sentence == (
        "Deploy onnx-int8: 4.8 × as fast as PyTorch, 96.2 % agreement with the live model, 587 MiB (0.52 × the base's weights)."
    )
    best = report.recommendation.best
    assert best is not None and best.run == "python onnx-int8/example.py 'def add(a, b):' --tokens 32" and best.language == "sh"
    assert best.install is not None and best.install.startswith("pip install onnxruntime==")
    assert chosen(report) == [("fastest", "onnx-int8"), ("nearest", "pytorch")]


def test_what_failed_is_not_recommended_however_fast_it_is(tmp_path: Path) -> None:  # R4.5
    assert chosen(report_of(facts.rejected_int8(), tmp_path / "1")) == [("fastest", "onnx"), ("smallest", "pytorch")]
    assert chosen(report_of(facts.failed_int8(), tmp_path / "2")) == [("fastest", "onnx"), ("smallest", "pytorch")]


@pytest.mark.parametrize("case", [facts.unverified, facts.withheld, facts.failed_merge], ids=lambda case: case.__name__)
def test_where_nothing_was_checked_nothing_is_recommended_and_the_report_says_so(case: Any, tmp_path: Path) -> None:
    report = report_of(case(), tmp_path)
    assert chosen(report) == [] and report.recommendation.sentence.startswith("Nothing is recommended: ")


def test_of_turns_that_lie_far_apart_no_single_figure_is_made(tmp_path: Path) -> None:
    busy = facts.check("onnx", speed_over_pytorch=5.3, speed_over_pytorch_range=[2.3, 17.0])
    said = report_of(facts.made_all(facts.check("pytorch"), busy), tmp_path).recommendation.sentence
    assert "onnx: 2.3 to 17 × as fast as PyTorch (measured on a busy machine)," in said and "5.3" not in said


def test_what_was_as_fast_in_some_turns_counts_as_equal_and_the_range_is_told(tmp_path: Path) -> None:
    near = facts.check("onnx", speed_over_pytorch=2.0, speed_over_pytorch_range=[1.5, 2.9])
    far = facts.check("onnx-int8", agreement=0.87, kl=0.003, speed_over_pytorch=3.3, speed_over_pytorch_range=[2.8, 3.5])
    report = report_of(facts.made_all(facts.check("pytorch"), near, far), tmp_path)
    assert chosen(report)[0] == ("fastest", "onnx")
    assert "Deploy onnx: 2.0 × as fast as PyTorch (single turns: 1.5 to 2.9 ×)," in report.recommendation.sentence
    assert "others are within 10 % of it, or may be as fast, since speeds varied" in report.recommendation.rule
    (server,) = [one.sentence for one in report.recommendation.targets if one.target == "cpu-server"]
    assert server.startswith(
        "onnx: perhaps as fast as onnx-int8, since their speeds varied while they were measured, and closer to the live model"
    )
    surely = facts.check("onnx", speed_over_pytorch=2.0, speed_over_pytorch_range=[1.9, 2.1])
    report = report_of(facts.made_all(facts.check("pytorch"), surely, far), tmp_path / "2")
    assert chosen(report)[0] == ("fastest", "onnx-int8")
    assert " to " not in report.recommendation.others[-1].sentence, "where turns agree there is no range"
    slower = facts.check("onnx", speed_over_pytorch=1.6, speed_over_pytorch_range=[0.4, 2.9])
    report = report_of(facts.made_all(facts.check("pytorch"), slower, far), tmp_path / "3")
    assert chosen(report)[0] == ("fastest", "onnx-int8"), "one lucky turn does not make up for half the speed"


def test_what_only_one_kind_of_device_can_use_is_recommended_there_alone(tmp_path: Path) -> None:
    names = ("mlx", "tensorrt-bundle", "web")
    made = tuple(facts.done(name, 5, 1, sizes=(1_000_000,)) for name in names)
    quick = [facts.check(name, speed_over_pytorch=9.0) for name in names]

    def told(job: JobFacts, folder: Path, *more: str) -> Report:
        work = job.work.model_copy(update={"export": ExportOptions(variants=(*more, *names))})
        return report_of(job.model_copy(update={"stages": (*made, *job.stages), "work": work}), folder)

    report = told(facts.made_all(facts.check("onnx", speed_over_pytorch=2.0), *quick), tmp_path, "onnx")
    assert chosen(report)[0] == ("fastest", "onnx")
    by_target = {one.target: one.variant for one in report.recommendation.targets}
    assert by_target["browser"] == "web" and by_target["nvidia"] == "tensorrt-bundle" and by_target["laptop"] == "onnx"
    alone = told(facts.made_all(*quick), tmp_path / "2")
    assert alone.recommendation.best is not None and alone.recommendation.best.variant in names


def test_of_those_that_are_about_as_fast_the_nearest_is_recommended(tmp_path: Path) -> None:
    """Tokens a second of two artifacts were measured at different times: what counts is how each compares with PyTorch in turns."""
    near = facts.check("onnx", speed_over_pytorch=3.1, tokens_per_second=2300.0)
    far = facts.check("onnx-int8", agreement=0.87, kl=0.003, speed_over_pytorch=3.3, tokens_per_second=4800.0)
    assert chosen(report_of(facts.made_all(facts.check("pytorch"), near, far), tmp_path))[0] == ("fastest", "onnx")
    slower = facts.check("onnx", speed_over_pytorch=2.9)
    assert chosen(report_of(facts.made_all(facts.check("pytorch"), slower, far), tmp_path / "2"))[0] == ("fastest", "onnx-int8")


def test_pytorch_itself_is_recommended_where_nothing_is_faster(tmp_path: Path) -> None:
    slow = [facts.check(name, speed_over_pytorch=0.6) for name in ("onnx", "onnx-int8")]
    own = facts.check("pytorch", kl=0.0, speed_over_pytorch=None)
    report = report_of(facts.made_all(own, *slow), tmp_path)
    assert chosen(report) == [("fastest", "pytorch"), ("smallest", "onnx-int8")]
    assert report.recommendation.best is not None and report.recommendation.best.language == "python"


def test_without_measured_speed_the_smallest_is_recommended(tmp_path: Path) -> None:
    none = {"tokens_per_second": None, "pytorch_tokens_per_second": None, "speed_over_pytorch": None}
    checks = [facts.check(name, **none) for name in ("pytorch", "onnx")] + [facts.check("onnx-int8", kl=0.01, **none)]
    report = report_of(facts.made_all(*checks), tmp_path)
    assert chosen(report)[0] == ("smallest", "onnx-int8") and "the smallest one" in report.recommendation.rule


def test_an_adapter_alone_is_recommended_only_where_it_is_all_there_is(tmp_path: Path) -> None:
    stages = [facts.done("merge", 0, 5, figures=facts.MERGE), facts.done("pytorch-adapter", 5, 1, sizes=(30_000,))]
    adapter = facts.done("check-pytorch-adapter", 7, 1, checks=(facts.check("pytorch-adapter", speed_over_pytorch=9.0),))
    alone = facts.job(*stages, adapter, work=asked("pytorch-adapter"))
    report = report_of(alone, tmp_path / "1")
    assert chosen(report) == [("fastest", "pytorch-adapter")] and "needs its base model too" in report.recommendation.sentence
    onnx = [facts.done("onnx", 8, 1, sizes=(90_000,)), facts.done("check-onnx", 9, 1, checks=(facts.check("onnx"),))]
    both = facts.job(*stages, adapter, *onnx, work=asked("pytorch-adapter", "onnx"))
    assert chosen(report_of(both, tmp_path / "2")) == [("fastest", "onnx")]


def test_graphs_that_are_made_to_be_looked_into_are_not_for_deployment(tmp_path: Path) -> None:
    passed = facts.check("onnx-activations", speed_over_pytorch=9.0)
    stages = [facts.done("onnx-activations", 8, 1, sizes=(9,)), facts.done("check-onnx-activations", 9, 1, checks=(passed,))]
    assert chosen(report_of(facts.job(*stages, work=asked("onnx-activations")), tmp_path)) == []


NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-1, 3), st.just("fast"), st.just([1]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    data=st.lists(
        st.fixed_dictionaries(
            {"verdict": st.sampled_from(list(Verdict))},
            optional=dict.fromkeys(("agreement", "kl", "error_max", "tokens_per_second", "speed_over_pytorch"), NUMBERS),
        ),
        min_size=3, max_size=3,
    ),
    allowed=st.booleans(),
)  # fmt: skip
def test_whatever_was_measured_only_what_passed_and_was_compared_is_named(
    data: list[dict[str, Any]], allowed: bool, tmp_path: Path
) -> None:
    names = ("pytorch", "onnx", "onnx-int8")
    checks = [
        ArtifactCheck(variant=name, verdict=one["verdict"], figures={key: value for key, value in one.items() if key != "verdict"})
        for name, one in zip(names, data, strict=True)
    ]
    report = report_of(facts.made_all(*checks, work=asked(*names, publish_unverified=names if allowed else ())), tmp_path)
    sound = {
        artifact.variant
        for artifact in report.artifacts
        if artifact.verdict is Verdict.PASSED and (artifact.measured.agreement is not None or artifact.measured.error_max is not None)
    }
    named = [variant for _, variant in chosen(report)]
    assert set(named) <= sound and bool(named) == bool(sound) and len(named) == len(set(named))


def test_the_page_says_what_to_deploy_before_the_figures_and_its_blocks_can_be_copied_whole(tmp_path: Path) -> None:
    text = page_of(facts.succeeded(), tmp_path)
    page = Page(text)
    said = page.text
    assert said.index("What to deploy") < said.index("onnx-int8 : 4.8 × as fast") < said.index("pip install") < said.index("Artifacts")
    assert '<pre class="copy">python onnx-int8/example.py &#39;def add(a, b):&#39; --tokens 32</pre>' in text
    assert ".copy { user-select: all;" in text


# R3.5
@pytest.mark.parametrize(
    ("case", "cause"),
    [(facts.failed_merge, facts.BASE_MISSING.cause), (facts.failed_int8, facts.OUT_OF_MEMORY.cause), (facts.withheld, "no memory")],
    ids=["merge", "int8", "reference"],
)
def test_each_root_cause_is_on_the_page_once_with_the_command_that_tries_again(case: Any, cause: str, tmp_path: Path) -> None:
    job = case()
    said = Page(page_of(job, tmp_path)).text
    earlier = sum(attempt.fault is not None for stage in job.stages if stage.fault is None for attempt in stage.attempts)
    assert said.count(cause) == 1 + (earlier if cause == facts.OUT_OF_MEMORY.cause else 0), "attempts that were repeated say their own"
    assert f"ckptd queue retry {job.export_id}" in said


def test_stages_that_failed_for_one_cause_are_one_entry(tmp_path: Path) -> None:
    full = facts.OUT_OF_MEMORY.model_copy(update={"cause": "the disk is full", "remedy": "free 12 GB"})
    other = full.model_copy(update={"operation": "write the graph"})
    job = facts.made_all(facts.check("pytorch"))
    stages = {"onnx": facts.lost("onnx", full), "onnx-int8": facts.lost("onnx-int8", other)}
    job = job.model_copy(update={"stages": tuple(stages.get(stage.name, stage) for stage in job.stages)})
    assert len(report_of(job, tmp_path).failures) == 2, "programs find both"
    said = Page(page_of(job, tmp_path)).text
    assert said.count("the disk is full") == 1 and said.count("Free 12 GB") + said.count("free 12 GB") == 1
    assert "onnx, onnx-int8 Could not quantize the graph: the disk is full. Could not write the graph." in said


@pytest.mark.parametrize(("size", "offered"), [(96_000, False), (94_000, True)])
def test_a_smallest_of_about_the_same_size_is_not_offered(size: int, offered: bool, tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path)
    changed = {"onnx": (100_000, 5.0, 1e-4), "onnx-int8": (300_000, 1.5, 1e-3), "pytorch": (size, None, 1e-6)}
    artifacts = [
        one.model_copy(update={
            "size_bytes": changed[one.variant][0],
            "figures": {**one.figures, "speed_over_pytorch": changed[one.variant][1], "kl": changed[one.variant][2],
                        "by_text": {"kl": facts.by_text("kl", changed[one.variant][2])}},
        })
        for one in report.artifacts
    ]  # fmt: skip
    said = recommend(report.model_copy(update={"artifacts": tuple(artifacts)}))
    assert said.best is not None and said.best.variant == "onnx"
    assert [(one.preference, one.variant) for one in said.others] == [("smallest" if offered else "nearest", "pytorch")]


def test_more_tokens_a_second_with_a_lower_factor_are_explained(tmp_path: Path) -> None:
    slow = facts.check("onnx", speed_over_pytorch=3.6, tokens_per_second=900.0)
    fast = facts.check("onnx-int8", speed_over_pytorch=3.1, tokens_per_second=1000.0)
    assert "onnx-int8 has more tokens/s than onnx but a lower factor" in page_of(facts.made_all(slow, fast), tmp_path / "1")
    alike = facts.check("onnx-int8", speed_over_pytorch=3.9, tokens_per_second=1000.0)
    assert "but a lower factor" not in page_of(facts.made_all(slow, alike), tmp_path / "2")


def test_a_warning_of_the_export_is_not_called_one_of_a_job(tmp_path: Path) -> None:
    warned = facts.succeeded().model_copy(update={"warnings": ("the disk was full",)})
    assert "<b>export</b>: the disk was full" in page_of(warned, tmp_path)
