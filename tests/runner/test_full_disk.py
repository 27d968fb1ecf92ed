"""A disk that fills up in the middle of an export: a sentence, nothing half, and the same command goes on once there is room."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing as closed_after
from pathlib import Path
from typing import Any

import pytest

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults.errors import Fault, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId
from daemon.operating.engine import engine
from daemon.operating.monitoring.live import LiveFile, write_live
from daemon.publishing import kept, lending, publication
from daemon.running.attempts.post_mortem import Death, conclude
from daemon.running.rules.retry import NOT_ITS_OWN, decide
from daemon.running.runner import Runner
from handlers.__main__ import _failed
from tests.journal.entries import enter
from tests.runner.desk import Desks, done

SCRIPT = """
set -u
mount -t tmpfs -o size=400m tmpfs "$OUT" || exit 99
export CKPTD_LIMITS__DISK_RESERVE=0 CKPTD_EXPORT__VARIANTS=pytorch CKPTD_VALIDATE__SAMPLES=1 CKPTD_VALIDATE__SPEED_TOKENS=0
( until find "$OUT" -name pytorch.1 | grep -q .; do sleep 0.005; done
  mount -o "remount,size=$(df -k --output=used "$OUT" | tail -n 1 | tr -d ' ')k" "$OUT" ) &
"$PYTHON" -m daemon export "$CHECKPOINT" --output "$OUT"; echo "first: $?"
kill $! 2> /dev/null; wait
find "$OUT" -path '*/.staging' -prune -o -type f -print; echo "listed"
mount -o remount,size=400m "$OUT"
"$PYTHON" -m daemon export "$CHECKPOINT" --output "$OUT"; echo "second: $?"
find "$OUT" -name MANIFEST.json
"""


@pytest.mark.slow
def test_a_full_disk_is_temporary_and_the_export_goes_on_when_there_is_room(tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.2 R6.5
    out = tmp_path / "out"
    out.mkdir()
    environment = {
        **os.environ,
        "OUT": str(out),
        "PYTHON": sys.executable,
        "CHECKPOINT": str(pico_checkpoint),
        "XDG_STATE_HOME": str(tmp_path),
    }
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    answer = subprocess.run(
        [*unshare, "bash", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    said = answer.stdout + answer.stderr
    assert "first: 75" in answer.stdout, said
    assert "Fix: free space" in answer.stderr and "Traceback" not in answer.stderr, said
    before, _, after = answer.stdout.partition("listed")
    assert before.strip().endswith("first: 75"), f"something half was published: {before}"
    assert "second: 0" in after, said
    assert str(out / "pico-run" / "step-4" / "MANIFEST.json") in after
    merges = [line for line in answer.stderr.splitlines() if line == "merge: running"]
    assert len(merges) == 1, "the finished merge must not be repeated"


@pytest.mark.parametrize("code", sorted(NOT_ITS_OWN))
def test_a_full_disk_never_counts_against_a_stage(code: FaultCode) -> None:
    fault = Fault(code=code, operation="o", cause="c", remedy="r")
    result = StageResult(outcome=Outcome.RETRYABLE, fault=fault)
    decision = decide(result, 99, 3, 10.0, random.Random(1))
    assert decision.state == "waiting" and not decision.counted and decision.delay is not None
    other = decide(result.model_copy(update={"fault": fault.model_copy(update={"code": FaultCode.CRASHED})}), 99, 3, 10.0, random.Random(1))
    assert other.state == "failed" and other.counted


def test_a_stage_that_met_a_full_disk_goes_on_at_once_when_there_is_room(make_desk: Desks) -> None:
    desk = make_desk(limits={"attempts": 1, "retry_seconds": 3600})
    job = desk.add("run", 4)
    full = Fault(code=FaultCode.DISK_FULL, operation="write", cause="No space left", remedy="free some")
    good = desk.script
    desk.script = lambda context: StageResult(outcome=Outcome.RETRYABLE, fault=full, retry_after=3600.0)
    noted: list[Any] = []
    desk.runner.waits.refused = noted.append
    desk.tick(5)
    assert desk.started == ["run-4 merge"] and desk.state(job) == "running" and full.code in [fault.code for fault in noted if fault]
    desk.script = good
    desk.tick(3)
    assert len(desk.started) == 1, "it waits"
    desk.runner.room_again()
    desk.tick(40)
    assert desk.state(job) == "succeeded" and desk.journal.stages.of(job)["merge"].failures == 0


def test_what_waits_for_another_reason_is_not_hastened(make_desk: Desks) -> None:
    desk = make_desk()
    enter(desk.journal)
    desk.journal.jobs.start("job", None)
    for stage, code in (("merge", FaultCode.DISK_FULL), ("pytorch", FaultCode.CRASHED)):
        fault = Fault(code=code, operation="o", cause="c", remedy="r").model_dump_json()
        desk.journal.database.write("test", lambda c, s=stage, f=fault: c.execute(
            "UPDATE stage SET retry_at = ?2, retry_delay = 3600, fault = ?1 WHERE name = ?3", (f, time.time() + 3000, s)))  # fmt: skip
    desk.journal.stages.hasten([FaultCode.DISK_FULL])
    assert {name: row.due(time.time()) for name, row in desk.journal.stages.of("job").items() if name in ("merge", "pytorch")} == {
        "merge": True, "pytorch": False,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["I/O error: No space left on device (os error 28)", "write: Disk quota exceeded"])
def test_a_library_that_raises_its_own_error_on_a_full_disk_is_understood(text: str) -> None:
    result = _failed(RuntimeError(text), "merge", "/staging")
    assert result.fault is not None and result.fault.code == FaultCode.DISK_FULL and result.fault.path == "/staging"


def test_a_write_through_memory_on_a_full_disk_is_no_crash_of_the_stage(tmp_path: Path) -> None:
    context = StageContext.model_construct(stage="merge", result=str(tmp_path / "result.json"), staging=str(tmp_path))
    log = AttemptLog(tmp_path / "log.txt", 1 << 16)
    full = conclude(context, log, Death(code=-signal.SIGBUS, no_room="/staging"), 1.0)
    assert full.fault is not None and full.fault.code == FaultCode.DISK_FULL and "/staging" in full.fault.cause
    mute = conclude(context, log, Death(code=1, no_room="/state"), 1.0)
    assert mute.fault is not None and mute.fault.code == FaultCode.DISK_FULL and "could not record why" in mute.fault.cause
    loud = conclude(context, log, Death(code=1), 1.0)
    assert loud.fault is not None and loud.fault.code == FaultCode.NO_RESULT
    other = conclude(context, log, Death(code=-signal.SIGBUS), 1.0)
    assert other.fault is not None and other.fault.code == FaultCode.CRASHED


def test_a_start_that_can_not_write_down_what_was_left_open_does_so_later(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk()
    job = desk.add("run", 4)
    desk.script = lambda context: None
    desk.tick(3)
    left = Runner(desk.runner.settings, desk.journal, desk.runner.paths, desk.runner.executor)
    real, fails = desk.journal.attempts.settle, [1, 1]

    def settle(*arguments: Any, **named: Any) -> None:
        if fails.pop() if fails else 0:
            raise Retryable(FaultCode.JOURNAL_UNAVAILABLE, "write", "the disk is full (SQLITE_FULL)", "free space")
        real(*arguments, **named)

    monkeypatch.setattr(desk.journal.attempts, "settle", settle)
    with pytest.raises(Retryable):
        left.recover()
    monkeypatch.setattr(left, "_sleep", lambda: None)
    assert [left.complaints.during(left._round) for _ in range(2)] == [False, True]
    assert desk.journal.stages.of(job)["merge"].failures == 0 and next(iter(desk.journal.attempts.of(job))).outcome == "interrupted"


def test_an_output_that_could_not_be_kept_for_want_of_room_is_noted_for_the_watch_over_the_disks(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export is done, and nothing else may be written for hours: only this refusal tells that a quota is used up."""
    desk, noted = make_desk(), list[Fault | None]()
    desk.runner.waits.refused = noted.append

    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(desk.home / "out" / ".kept" / "key"))

    monkeypatch.setattr(kept, "_keep_lent", full)
    job = desk.add("run", 1)
    desk.tick(30)
    assert desk.state(job) == "succeeded"
    assert [fault.code for fault in noted if fault is not None] == [FaultCode.DISK_FULL]


@pytest.mark.parametrize("full", [True, False])
def test_what_a_full_disk_kept_from_being_recorded_at_the_end_is_no_crash_of_its_stage(tmp_path: Path, full: bool) -> None:
    """The attempt is left open as by a daemon that died; it is not tried a last time because somebody restarted the box."""
    settings = Settings.model_validate(
        {"state": {"directory": tmp_path}, "output": {"directory": tmp_path / "out"}, "limits": {"disk_reserve": 0}}
    )
    paths = prepare(tmp_path, settings.output.directory)
    with closed_after(Journal(paths.journal)) as journal:
        enter(journal)
        journal.jobs.start("job", None)
        journal.attempts.claim(Intent(AttemptId("job", "merge", 1), paths.jobs / "job" / "merge.1", paths.staging / "job" / "merge.1", 5))
    write_live(paths.live, LiveFile(pid=1, verdict="full" if full else "healthy"))
    with engine(settings, tmp_path) as parts:
        stage = parts.journal.stages.of("job")["merge"]
        assert (stage.crashes, stage.state) == (0 if full else 1, "waiting")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


def test_a_publication_that_a_full_disk_cut_off_costs_no_finished_stage_even_where_nothing_could_be_taken_back(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between lending and the renaming the outputs are symlinks to an export that is not there yet."""
    desk = make_desk()
    job = desk.add("run", 1)
    with monkeypatch.context() as patched:
        patched.setattr(publication, "swap", full)
        patched.setattr(lending.os, "link", full_when_taken_back)
        desk.tick(20)
        assert desk.state(job) == "running"
        assert [path.name for path in desk.runner.paths.staging.rglob("*") if path.is_symlink()], "nothing was lent: this tests nothing"
    desk.runner.room_again()
    for _ in range(200):
        desk.tick()
        if desk.state(job) == "succeeded":
            break
        time.sleep(0.01)
    assert desk.state(job) == "succeeded"
    assert len(desk.started) == len(set(desk.started)), desk.started


link = os.link


def full_when_taken_back(source: Path, target: Path, **options: Any) -> None:
    """As `os.link`, but for the names that `take_back` makes."""
    if "lent.json" in str(target):
        full()
    link(source, target, **options)


def test_an_attempt_that_goes_on_with_what_an_earlier_one_left_finds_files_there_and_no_links(make_desk: Desks, tmp_path: Path) -> None:
    """Through a link that a publication left a stage would write into an export."""
    desk, published = make_desk(), tmp_path / "published"
    published.write_text("published")

    def interrupted_first(context: StageContext) -> StageResult:
        left, at = Path(context.staging) / "shard", Path(context.staging) / "file"
        if context.stage == "merge" and context.attempt == 1:
            left.write_text("left")
            at.symlink_to(published)
            return StageResult(outcome=Outcome.INTERRUPTED)
        if context.stage == "merge":
            assert left.read_text() == "left" and not at.is_symlink()
        return done(context)

    desk.script = interrupted_first
    job = desk.add("run", 1)
    desk.tick(30)
    assert desk.state(job) == "succeeded" and published.read_text() == "published"
