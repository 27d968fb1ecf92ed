"""The stages of the user's own tasks, with commands that are real programs: whatever a program does, there is a figure or a sentence."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import StageContext, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.child.progress import Interrupted, Reporter, StageOutput, StopFlag
from handlers.validate.tasks import stage
from tests.merge import helpers

ANSWERS = """
import json, os, sys
ask = json.load(sys.stdin)
scores = [1, 1, 1, 1] if ask["live"] else [1, 0, 1, 1]
print("some library says hello")
print(json.dumps({"items": [{"id": n, "score": s} for n, s in enumerate(scores)], "metrics": {"files": len(os.listdir(ask["folder"]))}}))
"""


class Job:
    """A job with a merged model and one artifact, both of which are a few bytes."""

    def __init__(self, folder: Path, **task: Any) -> None:
        self.folder = folder
        for name in ("merge", "onnx", "check"):
            (folder / name).mkdir(parents=True)
        (folder / "merge" / "model.safetensors").write_bytes(b"m")
        (folder / "onnx" / "model.onnx").write_bytes(b"o")
        (folder / "pin").mkdir()
        (folder / "pin" / "tokenizer.json").write_text("{}")
        self.checked("passed")
        tasks = [{"name": "mine", "variants": ("onnx",), "limit_seconds": 60, **task}]
        self.work = Work(export=ExportOptions(variants=("pytorch", "onnx")), validation=ValidateOptions.model_validate({"tasks": tasks}))

    def checked(self, verdict: str) -> None:
        (self.folder / "check" / "check.json").write_text(json.dumps({"verdict": verdict, "run": True}))

    def context(self, name: str) -> StageContext:
        inputs = {"merge": self.folder / "merge", "onnx": self.folder / "onnx", "check-onnx": self.folder / "check"}
        if name != "evaluate-live":
            inputs["evaluate-live"] = self.folder / "evaluate-live" / "staging"
        made = helpers.context(self.folder / name, self.folder / "pin", None)
        given = {key: str(folder) for key, folder in inputs.items()}
        return made.model_copy(update={"stage": name, "work": self.work, "inputs": given})

    def live(self, reporter: Reporter | None = None) -> StageOutput:
        return stage.run_live(self.context("evaluate-live"), reporter or helpers.reporter())

    def artifact(self) -> StageOutput:
        return stage.run(self.context("evaluate-onnx"), helpers.reporter())


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def test_a_command_is_run_on_the_live_model_and_on_an_artifact_and_both_are_compared(tmp_path: Path) -> None:
    job = Job(tmp_path, command=python(ANSWERS), metric="accuracy", drop=0.9)
    live = job.live()
    assert live.reusable and not live.warnings
    assert live.figures["tasks"]["mine"]["value"] == 1.0
    output = job.artifact()
    (check,) = output.checks
    figures = check.figures["tasks"]["mine"]
    assert (check.verdict, output.warnings) == (Verdict.PASSED, [])
    assert (figures["value"], figures["live"], figures["difference"]) == (0.75, 1.0, -0.25)
    assert figures["by_text"] == {"mine": [[1.0, 1.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]}
    assert figures["metrics"] == {"files": 1.0}


def test_a_command_gets_the_folder_of_each_model_and_what_it_is(tmp_path: Path) -> None:
    keep = tmp_path / "asked"
    job = Job(tmp_path / "job", command=python(f"import sys; t = sys.stdin.read(); open({str(keep)!r}, 'a').write(t)\n" + ANSWERS.replace(
        "json.load(sys.stdin)", "json.loads(t)")), limit=12)  # fmt: skip
    job.live()
    job.artifact()
    live, artifact = map(json.loads, keep.read_text().splitlines())
    assert (live["live"], live["variant"], live["folder"]) == (
        True,
        "pytorch",
        str(tmp_path / "job" / "evaluate-live" / "temporary" / "model"),
    )
    assert (artifact["live"], artifact["variant"], artifact["folder"]) == (False, "onnx", str(tmp_path / "job" / "onnx"))
    assert (live["task"], live["limit"], live["step"], live["run"]) == ("mine", 12, 4, "run")


def test_the_folder_of_the_live_model_has_its_tokenizer(tmp_path: Path) -> None:
    found = (
        "import json, os, sys; print(json.dumps({'items': [{'id': n, 'score': 1} for n in os.listdir(json.load(sys.stdin)['folder'])]}))"
    )
    job = Job(tmp_path, command=python(found))
    job.live()
    answer = json.loads((tmp_path / "evaluate-live" / "staging" / "mine.json").read_bytes())
    assert {item["id"] for item in answer["items"]} == {"model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import sys; sys.exit(3)", "exit code 3"),
        ("raise ValueError('no data set')", 'exit code 1; the last line of its standard error is "ValueError: no data set"'),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("print('Accuracy: 0.5')", "no JSON"),
        ('print(\'{"items": [{"id": 1, "score": NaN}]}\')', "no finite number"),
        ('print(\'{"items": [{"id": 9, "score": 1}]}\')', "not those of the live model"),
    ],
)
def test_a_bad_answer_is_one_sentence_and_takes_no_artifact(tmp_path: Path, program: str, says: str) -> None:
    job = Job(tmp_path, command=python(ANSWERS))
    job.live()
    task = job.work.validation.tasks[0].model_copy(update={"command": python(program)})
    job.work = job.work.model_copy(update={"validation": job.work.validation.model_copy(update={"tasks": (task,)})})
    output = job.artifact()
    (check,) = output.checks
    assert check.verdict is Verdict.PASSED
    assert says in check.figures["tasks"]["mine"]["failed"]
    assert len(output.warnings) == 1 and says in output.warnings[0]
    assert "`ckptd logs --job j --stage evaluate-onnx`" in output.warnings[0]
    assert not output.reusable
    limited = task.model_copy(update={"drop": 0.5})
    job.work = job.work.model_copy(update={"validation": job.work.validation.model_copy(update={"tasks": (limited,)})})
    (check,) = job.artifact().checks
    assert check.verdict is Verdict.UNVERIFIED and says in check.reasons[0] and check.remedy


def test_what_gave_nothing_of_the_live_model_is_not_run_on_an_artifact(tmp_path: Path) -> None:
    count = tmp_path / "count"
    job = Job(tmp_path / "job", command=python(f"open({str(count)!r}, 'a').write('x'); raise ValueError('no data set')"), drop=0.1)
    assert not job.live().reusable
    output = job.artifact()
    (reason,) = output.checks[0].reasons
    assert "no answer of the live model" in reason and "ValueError: no data set" in reason
    assert count.read_text() == "x" and not output.warnings, "the warning is that of the live model"


def test_no_such_program_is_said(tmp_path: Path) -> None:
    output = Job(tmp_path, command=("/no/such/program",)).live()
    assert "there is no program '/no/such/program'" in output.warnings[0].replace('"', "'")


def test_what_a_command_leaves_running_ends_before_its_answer_counts(tmp_path: Path) -> None:
    """It could write into the artifact afterwards."""
    left = tmp_path / "pid"
    program = f"import subprocess; p = subprocess.Popen(['sleep', '600']); open({str(left)!r}, 'w').write(str(p.pid))\n{ANSWERS}"
    output = Job(tmp_path / "job", command=python(program)).live()
    assert output.figures["tasks"]["mine"]["value"] == 1.0
    deadline = time.monotonic() + 30
    while _runs(int(left.read_text())):
        assert time.monotonic() < deadline, "its child still runs"
        time.sleep(0.05)


def test_a_command_that_takes_too_long_is_ended_with_what_it_began(tmp_path: Path) -> None:
    alive = tmp_path / "pid"
    program = f"import os, subprocess; p = subprocess.Popen(['sleep', '600']); open({str(alive)!r}, 'w').write(str(p.pid)); p.wait()"
    output = Job(tmp_path / "job", command=python(program), limit_seconds=2).live()
    assert "did not end within 2 s" in output.warnings[0] and "limit_seconds" in output.warnings[0]
    deadline = time.monotonic() + 30
    while _runs(int(alive.read_text())):
        assert time.monotonic() < deadline, "its child still runs"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = f"import subprocess; open({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '300']).pid))\n{ANSWERS}"
    try:
        assert not Job(tmp_path / "job", command=python(program)).live().warnings
    finally:
        os.kill(int(pid.read_text()), 9)


def test_a_command_that_changes_the_artifact_fails_it(tmp_path: Path) -> None:
    job = Job(tmp_path, command=python(ANSWERS + "\nif not ask['live']: open(ask['folder'] + '/cache', 'w')"))
    job.live()
    (check,) = job.artifact().checks
    assert check.verdict is Verdict.FAILED and not check.of_precision
    assert "changed files" in check.reasons[0]


def test_the_merged_model_is_the_live_model_of_a_command_and_is_not_run_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    job = Job(tmp_path / "job", command=python(f"open({str(count)!r}, 'a').write('x')\n{ANSWERS}"), variants=("pytorch",))
    job.live()
    context = job.context("evaluate-pytorch")
    inputs = {**context.inputs, "pytorch": str(job.folder / "merge"), "merged": str(job.folder / "check")}
    (check,) = stage.run(context.model_copy(update={"inputs": inputs}), helpers.reporter()).checks
    assert check.figures["tasks"]["mine"]["difference"] == 0.0
    assert count.read_text() == "x"


def test_an_attempt_goes_on_behind_the_last_answer(tmp_path: Path) -> None:
    count = tmp_path / "count"
    job = Job(tmp_path / "job", command=python(f"open({str(count)!r}, 'a').write('x')\n{ANSWERS}"))
    job.live()
    job.live()
    assert count.read_text() == "x"


def test_a_stage_that_is_told_to_stop_ends_the_command(tmp_path: Path) -> None:
    job = Job(tmp_path, command=("sleep", "600"))
    stop = StopFlag()

    class Stopping(Reporter):
        calls = 0

        def checkpoint(self) -> None:
            self.calls += 1
            stop.asked = self.calls > 3
            super().checkpoint()

    began = time.monotonic()
    with pytest.raises(Interrupted), open(os.devnull, "w", encoding="utf-8") as nobody:
        job.live(Stopping(nobody, stop))
    assert time.monotonic() - began < 300
    assert not (tmp_path / "evaluate-live" / "staging" / "mine.json").exists()


def test_an_artifact_that_failed_its_check_is_not_run(tmp_path: Path) -> None:
    job = Job(tmp_path, command=python(ANSWERS))
    job.live()
    job.checked("failed")
    output = job.artifact()
    assert output.checks == [] and "its check says failed" in output.warnings[0]
