"""An error that one job meets, also after its end, keeps no other from its turn, is told, and costs the job nothing when it is over."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints.models import base_models
from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.rows import JobRow
from daemon.publishing.kept import OutputCache
from daemon.running import endings, recovery
from daemon.running.queue import Queue
from daemon.system import episodes
from tests.runner.desk import Desks, done


def test_a_base_that_can_not_be_read_now_is_waited_for(make_desk: Desks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "FIRST_LOOKS", 0.0)
    base = tmp_path / "base"
    base.mkdir()
    desk = make_desk(base={"map": {"org/base": base}})
    (base / "config.json").write_text("{}")
    (base / "pytorch_model.bin").write_bytes(b"x")
    name = desk.add("run", 1, base="org/base")
    with monkeypatch.context() as inner:
        inner.setattr(base_models, "measure", _fail)
        desk.tick(3)
        assert desk.state(name) == "pending" and desk.runner.waits.of[name].fault.cause == "Input/output error"
        assert desk.started == []
    desk.tick(3)
    assert desk.started[0] == "run-1 merge" and desk.state(name) != "pending"


def _fail(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOENT])
@pytest.mark.parametrize("where", ["state", "output"])
def test_an_error_with_a_file_of_our_own_is_nothing_that_is_away_and_is_over_with_the_error(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    desk = make_desk(limits={"retry_seconds": 0.0})
    folder = {"state": desk.runner.paths.state, "output": desk.runner.paths.output}[where]
    name, told = desk.add("run", 1), []
    desk.runner.away.tell = lambda fault, over: told.append(fault)
    with monkeypatch.context() as inner:

        def start(order: object) -> None:
            raise OSError(number, os.strerror(number), str(folder / ".job.json.1.tmp"))

        inner.setattr(desk.runner.children._executor, "start", start)
        desk.tick(2)
    fault = desk.journal.stages.of(name)["merge"].fault
    assert fault is not None and fault.code != FaultCode.SOURCE_AWAY and told == []
    desk.tick(30)
    assert desk.state(name) == "succeeded"


def test_an_error_of_one_job_keeps_no_other_from_its_turn(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk(limits={"jobs": 1})
    desk.script = lambda context: None
    bad = [desk.add("one", step) for step in range(1, 7)]
    desk.add("two", 7)
    start = Queue.start

    def broken(self: Queue, job: JobRow) -> JobRow | None:
        if job.id in bad:
            raise Permanent(FaultCode.OS_ERROR, "begin it", "it is broken", "mend it")
        return start(self, job)

    monkeypatch.setattr(Queue, "start", broken)
    desk.tick(3)
    assert desk.started == ["two-7 merge"] and {desk.runner.waits.of[one].fault.cause for one in bad} == {"it is broken"}


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
def test_what_can_not_be_cleared_away_is_said_once_and_keeps_nothing_from_its_turn(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    desk = make_desk()
    desk.script = lambda context: done(context) if state == "succeeded" or context.checkpoint.step == 2 else None
    bad = desk.add("run", 1)

    def remove(path: Path) -> None:
        if path.name == bad:
            _fail()
        remove_tree(path)

    with capture_logs() as logs, monkeypatch.context() as inner:
        inner.setattr(endings, "remove_tree", remove)
        desk.tick(1)
        if state == "cancelled":
            desk.journal.controls.cancel(bad, "by hand")
        other = desk.add("run", 2)
        desk.tick(60)
        assert (desk.state(bad), desk.state(other)) == (state, "succeeded")
        said = [one["event"] for one in logs if one["log_level"] != "info" and "no longer needs" in one["event"]]
        assert len(said) == 1, logs
        assert len(desk.runner.waits) == 0
    desk.tick(3)
    assert not (desk.runner.paths.pins / bad).exists() and not desk.runner.endings.left and not desk.runner.endings._stays


def test_what_can_not_be_removed_at_the_start_is_said_and_keeps_the_daemon_from_nothing(
    make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make_desk()
    (desk.runner.paths.pins / "nobodys").mkdir()
    (desk.runner.paths.staging / "nobodys").mkdir(parents=True)
    (desk.runner.paths.jobs / "gone" / "merge-1" / "tmp").mkdir(parents=True)
    with capture_logs() as logs, monkeypatch.context() as inner:
        inner.setattr(recovery, "remove_tree", _fail)
        desk.runner.recover()
    assert len([one for one in logs if "Could not remove what no job needs" in one["event"]]) == 3
    desk.runner.recover()
    assert not (desk.runner.paths.pins / "nobodys").exists() and not (desk.runner.paths.staging / "nobodys").exists()


def test_an_error_after_the_end_of_a_job_leaves_nothing_that_waits_for_ever(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = make_desk()
    job = desk.add("run", 1)

    def keep(*_: object) -> None:
        raise RuntimeError("a bug")

    with capture_logs(), monkeypatch.context() as inner:
        inner.setattr(OutputCache, "keep", keep)
        desk.tick(60)
    assert desk.state(job) == "succeeded" and len(desk.runner.waits) == 0 and desk.runner._is_idle()
    assert not (desk.runner.paths.pins / job).exists() and not (desk.runner.paths.staging / job).exists()
