"""What a stage leaves that can't be published or recorded: an outcome with the cause, never a result that says less than there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.formats.declaration import FormatEntry
from daemon.contract.jobs.messages import CONTRACT_VERSION, Outcome, StageContext, StageResult
from daemon.running.attempts import post_mortem
from tests.workers.helpers import make_context

ROOT = Path(__file__).parents[2]
STAGES = """
import os, sys
from pathlib import Path
from handlers.child.progress import StageOutput

def link(context, reporter):
    Path(context.staging, "weights.bin").symlink_to("/etc/hostname")
    return StageOutput()

def folder_link(context, reporter):
    Path(context.staging, "sub").mkdir()
    Path(context.staging, "sub", "more").symlink_to("/etc", target_is_directory=True)
    return StageOutput()

def pipe(context, reporter):
    os.mkfifo(Path(context.staging, "pipe"))
    return StageOutput()

def name(context, reporter):
    Path(os.fsdecode(os.fsencode(context.staging) + b"/\\xff")).write_text("x")
    return StageOutput()

def array(context, reporter):
    import numpy
    return StageOutput(figures={"share": numpy.float32(0.5)})

def circle(context, reporter):
    figures = {}
    figures["again"] = figures
    return StageOutput(figures=figures)

def keys(context, reporter):
    return StageOutput(figures={1: 2})

def undecodable(context, reporter):
    return StageOutput(warnings=["\\udcff"])

def infinite(context, reporter):
    return StageOutput(figures={"share": float("nan"), "more": float("inf")})
"""


class Child:
    """Runs an entry of `STAGES` as the daemon would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "strange_stages.py").write_text(STAGES)

    def run(self, entry: str, **changes: Any) -> int:
        """The exit code. `changes`: of the job file."""
        context = make_context(self.folder, entry=entry)
        for place in (context.staging, context.temporary):
            Path(place).mkdir(parents=True)
        job = self.folder / "job.json"
        job.write_text(json.dumps({**context.model_dump(mode="json"), **changes}))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)])}
        done = subprocess.run(
            [sys.executable, "-m", "handlers", str(job)], capture_output=True, text=True, check=False, env=environment, timeout=60
        )  # fmt: skip
        self.said = done.stderr
        return done.returncode

    @property
    def result(self) -> StageResult:
        """The result file."""
        return StageResult.model_validate_json((self.folder / "attempt" / "result.json").read_bytes())


@pytest.fixture
def child(tmp_path: Path) -> Child:
    return Child(tmp_path)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("link", "'weights.bin', which is neither a file nor a folder"),
        ("folder_link", "'sub/more', which is neither"),
        ("pipe", "'pipe', which is neither"),
        ("name", "its result can't be written as JSON"),
        ("array", "numpy.float32"),
        ("circle", "ircular reference"),
        ("keys", "valid string"),
        ("undecodable", "surrogates not allowed"),
    ],
)
def test_what_can_not_be_published_or_recorded_fails_its_stage_at_once(child: Child, entry: str, words: str) -> None:
    assert child.run(f"strange_stages:{entry}") == 0, child.said
    result = child.result
    assert result.outcome is Outcome.PERMANENT and result.fault is not None
    assert result.fault.code == "bad-output" and words in result.fault.cause


def test_figures_that_are_no_numbers_are_null(child: Child) -> None:
    assert child.run("strange_stages:infinite") == 0
    assert child.result.outcome is Outcome.SUCCEEDED and child.result.figures == {"share": None, "more": None}


GONE = {"value": "a_package_that_is_gone.format:FORMAT", "root": ""}
REPLACED = {"value": "npz_format.format:FORMAT", "root": str(ROOT / "tests" / "formats" / "npz")}


def with_section(context: StageContext, name: str, value: Any) -> dict[str, Any]:
    raw = context.model_dump(mode="json")
    formats = [*(FormatEntry.model_validate(one).model_dump() for one in raw["formats"]), GONE, REPLACED]
    return {"work": {**raw["work"], name: value}, "formats": formats, "contract": CONTRACT_VERSION}


@pytest.mark.parametrize(("section", "value"), [("gone", {"level": 3}), ("npz", {"a_key_of_another_version": 1})])
def test_a_package_that_went_while_the_daemon_runs_takes_no_other_stage_with_it(child: Child, section: str, value: Any) -> None:
    changes = with_section(make_context(child.folder), section, value)
    assert child.run("strange_stages:infinite", **changes) == 0, child.said
    assert child.result.outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(("stage", "section"), [("npz", "npz"), ("merge", "onnx")])
def test_a_stage_never_runs_without_a_section_that_it_depends_on_or_that_is_ours(child: Child, stage: str, section: str) -> None:
    changes = with_section(make_context(child.folder), section, {"a_key_of_another_version": 1})
    assert child.run("strange_stages:infinite", stage=stage, **changes) == post_mortem.EXIT_BAD_JOB
    assert "a_key_of_another_version" in child.said
