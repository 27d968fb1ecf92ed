"""The real entry of a child: job files of no use, safe points, processes of a stage's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import ChildLimits, Outcome
from daemon.running.attempts import post_mortem
from daemon.running.workers.worker import Worker
from daemon.toolchains.registry import HANDLERS
from handlers import __main__ as entry
from handlers.child import process
from handlers.child.progress import Interrupted
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers import client
from tests.workers.helpers import Start, fault_of, until, wait


def test_a_real_child_fails_in_order(start: Start) -> None:
    result = wait(start("real"))
    assert result.outcome is Outcome.PERMANENT
    assert result.fault is not None


def test_a_stage_of_another_version_is_a_bad_job(start: Start) -> None:
    fault = fault_of(wait(start("real", entry="handlers.telepathy:run")))
    assert fault.code == "bad-job"
    assert "telepathy" in fault.cause and "`ckptd check`" in fault.remedy
    assert "Traceback" not in (fault.details or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"contract": 99}', "version 99"),
        ("{", "is not JSON"),
        ("[]", "version ?"),
        ('{"contract": 1, "job": "x"}', "stage: Field required"),
        (None, "No such file"),
    ],
)
def test_a_job_file_of_no_use_is_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    job = tmp_path / "job.json"
    if text is not None:
        job.write_text(text)
    done = subprocess.run([*HANDLERS, str(job)], capture_output=True, text=True, timeout=120)
    assert done.returncode == post_mortem.EXIT_BAD_JOB
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_both_wings_mean_the_same_by_an_exit_code() -> None:
    assert (entry.EXIT_BAD_JOB, entry.EXIT_UNWRITABLE, entry.EXIT_DISK_FULL, process.EXIT_OTHER_PARENT) == (
        post_mortem.EXIT_BAD_JOB, post_mortem.EXIT_UNWRITABLE, post_mortem.EXIT_DISK_FULL, post_mortem.EXIT_OTHER_PARENT,
    )  # fmt: skip


@pytest.mark.parametrize("place", ["start", "run"])
def test_a_child_can_be_killed_at_its_fault_points(start: Start, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    monkeypatch.setenv("CKPTD_FAULT", f"child.merge.{place}")
    assert fault_of(wait(start("real"))).code == "killed"


STAGE = """
import time
from pathlib import Path
def run(context, reporter):
    count = 0
    while True:
        try:
            count += 1
            reporter.progress(0.5, "unit")
            time.sleep(0.02)
        except Exception:
            pass
"""


def run_patient(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, resumable: bool) -> Worker:
    """The real entry with a stage that swallows every exception and works for ever."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/patient.py").write_text(STAGE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"), prepend=os.pathsep)
    worker = start("real", limits={"resumable": resumable}, entry="patient:run")
    until(worker, lambda: worker.progress.message == "unit")
    return worker


def test_a_resumable_stage_ends_at_its_next_safe_point(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R6.5
    worker = run_patient(start, tmp_path, monkeypatch, resumable=True)
    worker.stop()
    assert wait(worker).outcome is Outcome.INTERRUPTED
    assert worker.process.returncode == 0
    assert json.loads((worker.folder / "result.json").read_bytes())["outcome"] == "interrupted"


def test_another_stage_ends_at_once(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = run_patient(start, tmp_path, monkeypatch, resumable=False)
    worker.stop()
    assert wait(worker).outcome is Outcome.INTERRUPTED
    assert worker.process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("told", [True, False])
def test_a_process_that_ends_with_its_stage_gives_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    monkeypatch.setattr(process._stop, "asked", told)
    spec = EngineSpec(engine="onnx", folder=str(tmp_path))
    with client.EngineWorker("onnx", spec, tmp_path, ChildLimits(idle=False, nice=0)) as nested:
        os.kill(nested.pid, signal.SIGTERM)
        with pytest.raises(Interrupted if told else client.WorkerFailed):
            nested.load()


def test_the_processor_time_of_a_child_counts_its_own_processes_too() -> None:
    """Checks run engines in processes of their own; what these used belongs to the stage."""
    before = process.cpu_seconds()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    of_another = process.cpu_seconds() - before
    enough = time.process_time() + 0.2
    while time.process_time() < enough:
        pass
    assert of_another >= 0.3 and process.cpu_seconds() - before >= of_another + 0.2


def test_a_real_child_says_what_processor_time_it_took(start: Start) -> None:
    assert wait(start("real")).cpu_seconds > 0
