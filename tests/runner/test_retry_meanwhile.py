"""`ckptd queue retry` pins a checkpoint again while a daemon clears away after ended jobs: the new pin is not taken for the old one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.pinning.pins import held, identify
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.jobs import NewJob
from daemon.operating.asked import retrying
from daemon.running import recovery
from daemon.running.endings import tidy_job
from daemon.running.recovery import collect_orphans
from tests.runner.desk import Desk, Desks

ClearUp = Callable[[Desk, str], object]


def start_of_a_daemon(desk: Desk, job: str) -> object:
    return collect_orphans(desk.journal, desk.runner.paths, desk.runner.paths.pins)


def end_of_the_job(desk: Desk, job: str) -> object:
    row = desk.journal.jobs.get(job)
    assert row is not None
    return tidy_job(row, desk.journal, desk.runner.paths)


@pytest.fixture
def failed(make_desk: Desks, pico_checkpoint: Path) -> Desk:
    """A runner whose journal holds `job`, which has failed."""
    desk = make_desk()
    reference = CheckpointRef(
        root=str(pico_checkpoint.parents[1]), run="run", step=4, path=str(pico_checkpoint), layout="trainer-adapter",
        digest=identify(pico_checkpoint), method="LORA",
    )  # fmt: skip
    pin, target = desk.runner.paths.pins / "job", desk.home / "out" / "job"
    desk.journal.jobs.add(NewJob("job", reference, desk.runner.settings.work, ["merge"], pin, target, "f"))
    desk.journal.jobs.start("job", None)
    assert desk.journal.jobs.finish("job", "failed", None)
    return desk


@pytest.mark.parametrize("clear_up", [start_of_a_daemon, end_of_the_job])
@pytest.mark.parametrize("moment", ["make_pin", "identify"])
def test_clearing_up_during_a_retry_leaves_its_pin(failed: Desk, clear_up: ClearUp, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, threads = getattr(retrying, moment), []

    def interrupted(*arguments: object, **options: object) -> object:
        done = step(*arguments, **options) if moment == "make_pin" else None
        threads.append(threading.Thread(target=clear_up, args=(failed, "job")))
        threads[0].start()
        threads[0].join(0.3)  # it has come to its end by then, or waits for the retry's
        return done if moment == "make_pin" else step(*arguments, **options)

    monkeypatch.setattr(retrying, moment, interrupted)
    retrying.retry_job(failed.runner.settings, "job")
    threads[0].join(30)
    assert not threads[0].is_alive()
    assert failed.state("job") == "pending"
    row = failed.journal.jobs.get("job")
    assert row is not None and identify(row.pin) == row.checkpoint.digest


def test_two_retries_at_once_put_the_job_back_once_and_leave_its_pin(failed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    said, first = [], threading.Event()
    check = retrying.identify

    def slow(pin: Path) -> str:
        first.set()
        time.sleep(0.3)
        return check(pin)

    def retry() -> None:
        try:
            retrying.retry_job(failed.runner.settings, "job")
            said.append("queued")
        except UsageError as error:
            said.append(error.fault.cause)

    monkeypatch.setattr(retrying, "identify", slow)
    threads = [threading.Thread(target=retry) for _ in range(2)]
    threads[0].start()
    assert first.wait(30)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert sorted(said) == ["it waits", "queued"]
    row = failed.journal.jobs.get("job")
    assert row is not None and check(row.pin) == row.checkpoint.digest


def test_what_a_cancelled_job_still_holds_is_left_alone_till_it_is_cleared_away(failed: Desk) -> None:
    row = failed.journal.jobs.get("job")
    assert row is not None
    retrying.retry_job(failed.runner.settings, "job")
    assert failed.journal.controls.cancel("job", "by hand")
    before = row.pin.stat().st_ino
    with pytest.raises(UsageError, match="still being removed"):
        retrying.retry_job(failed.runner.settings, "job")
    assert row.pin.stat().st_ino == before
    failed.tick()
    assert not row.pin.exists()
    retrying.retry_job(failed.runner.settings, "job")
    assert failed.state("job") == "pending" and row.pin.is_dir()


def test_a_retry_that_takes_long_holds_up_neither_a_round_nor_a_start(failed: Desk) -> None:
    row = failed.journal.jobs.get("job")
    assert row is not None
    row.pin.mkdir(parents=True)
    with held(failed.runner.paths.pins_lock):
        failed.runner.endings.left["job"] = row
        began = time.monotonic()
        failed.tick()
        assert time.monotonic() - began < 5 and row.pin.is_dir()
        recovery.PATIENCE, patience = 0.1, recovery.PATIENCE
        try:
            assert start_of_a_daemon(failed, "job") == [] and row.pin.is_dir()
        finally:
            recovery.PATIENCE = patience
    failed.tick()
    assert not row.pin.exists() and not failed.runner.endings.left


@pytest.mark.parametrize("clear_up", [start_of_a_daemon, end_of_the_job])
def test_without_a_retry_the_pin_goes(failed: Desk, clear_up: ClearUp) -> None:
    row = failed.journal.jobs.get("job")
    assert row is not None
    row.pin.mkdir(parents=True)
    clear_up(failed, "job")
    assert not row.pin.exists()


def test_an_export_that_has_not_ended_is_to_be_waited_for(make_desk: Desks) -> None:
    desk = make_desk()
    desk.script = lambda context: None
    job = desk.add("run", 1)
    for state in ("pending", "running"):
        assert desk.state(job) == state
        with pytest.raises(UsageError) as raised:
            retrying.retry_job(desk.runner.settings, job)
        assert raised.value.fault.remedy == "wait until it has ended, which `ckptd status` shows, or cancel it; then retry it"
        desk.tick()
