"""Where tasks are run, who may name them, and what their outcome does to verdict, advice and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from daemon.config.loading import conflicts
from daemon.config.run_overrides import effective
from daemon.config.settings import Settings
from daemon.contract.advice.which import Standing, standing
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, Outcome, StageFacts, StageResult, Verdict
from daemon.contract.jobs.options import ExportOptions, Task, ValidateOptions, Work
from daemon.contract.jobs.plan import stage_names
from daemon.contract.jobs.run_figures import point_of
from daemon.contract.jobs.terms import terms_of
from daemon.contract.jobs.verdicts import judge, way_down_of

VARIANTS = ("pytorch", "onnx", "onnx-int8")


def work(*tasks: dict[str, Any]) -> Work:
    return Work(export=ExportOptions(variants=VARIANTS), validation=ValidateOptions.model_validate({"tasks": list(tasks)}))


def test_without_tasks_the_plan_and_the_jobs_key_are_as_they_were() -> None:
    assert not [name for name in stage_names(work(), "trainer-adapter") if name.startswith("evaluate")]
    assert work().digest == Work(export=ExportOptions(variants=VARIANTS), validation=ValidateOptions()).digest


def test_each_variant_that_a_task_names_has_a_stage_behind_its_check() -> None:
    names = stage_names(work({"name": "a", "command": ["x"], "variants": ["onnx-int8"]}), "trainer-adapter", ("onnx-fp16",))
    assert [name for name in names if name.startswith("evaluate")] == ["evaluate-live", "evaluate-onnx-int8"]
    assert names.index("check-onnx-int8") < names.index("evaluate-onnx-int8") < names.index("report")
    everywhere = stage_names(work({"name": "a", "command": ["x"]}), "trainer-adapter", ("onnx-fp16",))
    assert {f"evaluate-{name}" for name in (*VARIANTS, "onnx-fp16", "live")} <= set(everywhere)


def test_a_job_that_another_process_wrote_has_the_same_tasks() -> None:
    written = work({"name": "a", "command": ["x", "y"], "drop": 0.1, "variants": ["onnx"]})
    assert Work.recovered(written.text) == written
    (task,) = terms_of(written.text).validation.tasks
    assert (task.name, tuple(task.variants), task.drop) == ("a", ("onnx",), 0.1)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"name": "a"}, "exactly one of command and harness"),
        ({"name": "a", "command": ["x"], "harness": ["y"]}, "exactly one of command and harness"),
        ({"name": "a", "command": ["eval/run.sh"]}, "absolute path"),
        ({"name": "a", "command": ["x\0"]}, "byte 0"),
        ({"name": "a", "command": ["x"], "include": "/tasks"}, "harness alone"),
        ({"name": "a", "harness": ["x"], "include": "tasks"}, "pattern"),
        ({"name": "a", "harness": ["x"], "better": "lower"}, "for a command alone"),
        ({"name": "../a", "command": ["x"]}, "pattern"),
        ({"name": "a", "command": ["x"], "drop": -1}, "greater than or equal"),
        ({"name": "perplexity", "command": ["x"]}, "choose another"),
        ({"name": "a", "command": ["x", "--key", "sk-" + "a1B2" * 8]}, "report.json shows the command"),
        ({"name": "a", "command": ["x", "https://me:word@host.example/api"]}, "report.json shows the command"),
    ],
)
def test_a_mistake_in_a_task_is_named(task: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ValidateOptions.model_validate({"tasks": [task]})


def test_two_tasks_have_two_names() -> None:
    with pytest.raises(ValidationError, match="two have the name 'a'"):
        ValidateOptions.model_validate({"tasks": [{"name": "a", "command": ["x"]}] * 2})


def test_names_that_nothing_has_are_refused() -> None:
    settings = Settings(validate=ValidateOptions.model_validate({"tasks": [{"name": "a", "command": ["x"], "variants": ["onxn"]}]}))
    assert any("validate.tasks.a.variants" in problem for problem in conflicts(settings))
    settings = Settings(select=Settings().select.model_copy(update={"best_by": "b"}))
    assert any("select.best_by: there is no task" in problem for problem in conflicts(settings))


def test_a_runs_own_file_names_no_command(tmp_path: Path) -> None:
    (tmp_path / "ckptd.toml").write_text('[[validate.tasks]]\nname = "a"\ncommand = ["touch", "/tmp/x"]\n')
    outcome = effective(Settings(), tmp_path)
    assert outcome.settings.validate.tasks == ()
    assert outcome.warning is not None and "validate.tasks" in outcome.warning


def facts(options: Work, **stages: StageFacts) -> Any:
    class Facts:
        work = options

    Facts.stages = tuple(stages.values())  # type: ignore[attr-defined]
    return Facts()


def ended(name: str, *checks: ArtifactCheck) -> StageFacts:
    return StageFacts(name=name, state="succeeded", result=StageResult(outcome=Outcome.SUCCEEDED, checks=checks))


def test_a_loss_beyond_the_limit_fails_what_passed_its_check_and_the_next_form_follows() -> None:
    options = work({"name": "a", "command": ["x"], "drop": 0.1})
    passed = ArtifactCheck(variant="onnx-int8", verdict=Verdict.PASSED, figures={"kl": 0.1})
    lost = ArtifactCheck(variant="onnx-int8", verdict=Verdict.FAILED, reasons=("a: worse",), of_precision=True, figures={"tasks": {}})
    stages = {"variant": ended("onnx-int8"), "check": ended("check-onnx-int8", passed), "own": ended("evaluate-onnx-int8", lost)}
    check = next(check for check in judge(facts(options, **stages)) if check.variant == "onnx-int8")
    assert (check.verdict, check.reasons, dict(check.figures)) == (Verdict.FAILED, ("a: worse",), {"kl": 0.1, "tasks": {}})
    assert way_down_of(options, {stage.name: stage for stage in stages.values()}).steps[0].wanted == "onnx-int8"
    running = {**stages, "own": StageFacts(name="evaluate-onnx-int8", state="running")}
    check = next(check for check in judge(facts(options, **running)) if check.variant == "onnx-int8")
    assert check.verdict is Verdict.PASSED


@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED])
def test_what_failed_its_check_stays_so_whatever_a_task_says(verdict: Verdict) -> None:
    options = work({"name": "a", "command": ["x"], "drop": 0.1})
    failed = ArtifactCheck(variant="onnx", verdict=Verdict.FAILED, reasons=("wrong",))
    fine = ArtifactCheck(variant="onnx", verdict=verdict, reasons=("of its own",), of_precision=True)
    check = next(
        check for check in judge(facts(options, a=ended("onnx"), b=ended("check-onnx", failed), c=ended("evaluate-onnx", fine)))
        if check.variant == "onnx"
    )  # fmt: skip
    assert (check.verdict, check.reasons, check.of_precision) == (Verdict.FAILED, ("wrong",), False)


@pytest.mark.parametrize(("drop", "verdict"), [(None, Verdict.PASSED), (0.1, Verdict.UNVERIFIED)])
def test_an_evaluation_that_broke_matters_where_there_is_a_limit(drop: float | None, verdict: Verdict) -> None:
    options = work({"name": "a", "command": ["x"], **({} if drop is None else {"drop": drop})})
    fault = Fault(code=FaultCode.MEMORY_NEVER, operation="run", cause="too little memory", remedy="get more")
    stages = {
        "a": ended("onnx"), "b": ended("check-onnx", ArtifactCheck(variant="onnx", verdict=Verdict.PASSED)),
        "c": StageFacts(name="evaluate-onnx", state="failed", fault=fault),
    }  # fmt: skip
    check = next(check for check in judge(facts(options, **stages)) if check.variant == "onnx")
    assert check.verdict is verdict
    assert (drop is None) or ("too little memory" in check.reasons[0] and check.remedy == "get more")


def report(step: int, scores: list[float], perplexity: float, digest: str = "d", better: str = "higher") -> Any:
    rows = [[score, 1.0] for score in scores]
    task = {"metric": "m", "better": better, "value": sum(scores) / len(scores), "digest": digest, "by_text": {"support": rows}}
    figures = {"perplexity": perplexity, "by_text": {"perplexity": [[perplexity * 200.0, 200.0]] * 2}, "tasks": {"support": task}}
    row = {"variant": "onnx", "verdict": "passed", "published": True, "size_bytes": 5, "figures": figures}
    return point_of({"export_id": f"e{step}", "status": "succeeded", "finished": f"2026-01-0{step}", "artifacts": [row],
                     "checkpoint": {"step": step}})  # fmt: skip


def test_the_best_checkpoint_is_the_best_by_the_users_own_task() -> None:
    points = [report(1, [1.0] * 50, 9.0), report(2, [0.0] * 30 + [1.0] * 20, 2.0)]
    ranking = standing(points)
    assert isinstance(ranking, Standing)
    assert (ranking.metric, ranking.pick.step) == ("support", 1)
    assert isinstance(named := standing(points, task="support"), Standing) and named.pick.step == 1
    lower = [report(1, [1.0] * 50, 9.0, better="lower"), report(2, [0.0] * 30 + [1.0] * 20, 2.0, better="lower")]
    assert isinstance(ranking := standing(lower), Standing) and ranking.pick.step == 2
    assert not isinstance(standing(points, task="other"), Standing)


def test_exports_with_other_items_are_not_compared() -> None:
    ranking = standing([report(1, [1.0] * 50, 9.0, digest="other"), report(2, [0.0] * 30 + [1.0] * 20, 2.0)])
    assert isinstance(ranking, Standing)
    assert [point.step for point in ranking.ranked] == [2]


def test_a_task_is_written_with_what_is_set_alone() -> None:
    assert Task(name="a", command=("x",)).model_dump(mode="json") == {"name": "a", "command": ["x"]}
