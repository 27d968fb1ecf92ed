"""What `ckptd status` and `show` say of stages that a scheduler of other machines has."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.cli.views.details import _note, print_job
from daemon.cli.views.status import status_lines
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import CLAIM, END, ORDERS, OUTPUT, Claim, End, Orders
from daemon.journal.rows import StageRow
from daemon.operating.monitoring.live import LiveFile, StageProgress, write_live
from daemon.operating.monitoring.status import AttemptStatus, JobDetails, _stage, snapshot
from daemon.operating.wording.exports import pace
from daemon.running.attempts.executor import Whereabouts
from daemon.system.lock import locked
from tests.cli.test_layout import job, shown, stage

AWAY = "slurm gives no answer since 2026-01-01 12:00 (slurmctld is down)"


def test_a_scheduler_that_gives_no_answer_stands_once_in_the_head_of_the_status(tmp_path: Path) -> None:
    row = StageProgress(1, 0.0, "not handed in yet", 3.0, "slurm:a", 0, place=Whereabouts("slurm", away=AWAY))
    said = {}
    for away in (AWAY, ""):
        stages = {name: replace(row, place=Whereabouts("slurm", away=away)) for name in ("merge", "pytorch")}
        write_live(tmp_path / "live.json", LiveFile(pid=1, healthy=True, verdict="healthy", progress={"job": stages}))
        with locked(tmp_path / "lock"):
            said[away] = shown(status_lines(snapshot(tmp_path), None, None))
    assert [line for line in said[AWAY] if AWAY in line] == [
        f"scheduler {AWAY}: what runs there goes on, the rest waits, and it is asked again."
    ]
    assert not any(line.startswith("scheduler") for line in said[""])


def test_what_a_killed_daemon_left_in_a_queue_is_named_without_what_has_ended(tmp_path: Path) -> None:
    for number, (submission, name, value) in enumerate((
        ("taken", "", None), ("taken", CLAIM, Claim(by="worker")), ("taken", CLAIM, Claim(by="daemon")),
        ("taken", END, End(code=0, result=True)), ("none", "", None),
    ), 14):  # fmt: skip
        folder = tmp_path / "jobs" / "job" / f"merge.{number}"
        folder.mkdir(parents=True)
        elsewhere.put(folder, ORDERS, Orders(token=f"ckptd.{number}", command=("true",), submission=submission, id=str(number)))  # type: ignore[arg-type]
        if value is not None:
            elsewhere.put(folder, name, value)
    left = (
        "scheduler Jobs of slurm that the daemon handed in may still wait or run there: 14, 15. A daemon that is started takes them over."
    )
    assert left in shown(status_lines(snapshot(tmp_path), None, None))
    with locked(tmp_path / "lock"):
        assert snapshot(tmp_path).daemon.schedulers == (), "it has taken them over"


def test_time_in_a_queue_does_not_count_as_work_of_the_stage() -> None:
    waits = stage("merge", fraction=0.0, message="waits in the queue of slurm, job 5", place=Whereabouts("slurm", "5", "pending"))
    assert pace(waits) == "merge has waited for 70 s, waits in the queue of slurm, job 5"
    runs = replace(waits, place=Whereabouts("slurm", "5", "running"), message="tensors")
    assert pace(runs) == "merge 0 % after 70 s, tensors"


def test_a_stage_that_is_tried_again_says_when() -> None:
    fault = Fault(code=FaultCode.NODE_LOST, operation="run the stage merge", cause="its machine was lost", remedy="nothing")
    row = StageRow("merge", "waiting", 1, 1, time.time() + 300, 600.0, None, None, fault)
    waits = _stage(row, None, None, ())
    note = _note(JobDetails(**vars(job(stages=(waits,))), attempts=()), waits)
    assert note.startswith("tried again at 20") and note.endswith("; error: see below")
    assert _stage(replace(row, retry_at=time.time() - 1), None, None, ()).retry_at is None, "it is about to be"


@pytest.mark.parametrize(("files", "said"), [
    (("log.txt", OUTPUT), "its log: {folder}/log.txt"), ((OUTPUT,), "its log: {folder}/scheduler.txt"), ((), "it printed nothing"),
])  # fmt: skip
def test_the_log_that_is_named_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], files: tuple[str, ...], said: str) -> None:
    for name in files:
        (tmp_path / name).touch()
    attempt = AttemptStatus(
        "merge",
        1,
        "plain",
        "retryable",
        None,
        "2026-01-01T00:00:00+00:00",
        None,
        None,
        str(tmp_path / "job.json"),
        str(tmp_path / "log.txt"),
    )
    print_job(JobDetails(**vars(job(stages=())), attempts=(attempt,)))
    assert f"merge, attempt 1: retryable; {said.format(folder=tmp_path)}" in capsys.readouterr().out.replace("\n", "")
