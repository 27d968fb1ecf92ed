"""A wall clock that jumps, a summer time that ends, a box that sleeps: ticks, retries and running stages go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.clock.shift import Shift
from tests.service import Service

HOUR = 3600.0
JUMPS = {"an hour ahead": HOUR, "an hour back": -HOUR, "a day ahead": 24 * HOUR}
jumps = pytest.mark.parametrize("seconds", JUMPS.values(), ids=JUMPS)


class ShiftedService(Service):
    """A daemon whose wall clock the test sets. Roots are scanned, not watched, so that a lost tick shows."""

    def __init__(self, folder: Path, extra: str = "") -> None:
        super().__init__(folder, extra=f'[metrics]\ntextfile = "{folder / "ckptd.prom"}"\n[limits]\nretry_seconds = 2.0\n{extra}')
        self.config.write_text(self.config.read_text().replace("[watch]\n", '[watch]\nbackend = "poll"\n'))
        self.metrics = folder / "ckptd.prom"
        self.shift = Shift(folder / "shift")

    def start_shifted(self, **environment: str) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daemon", "run", "--config", str(self.config)],
                stdout=log, stderr=log, env={**self.shift.environment(), "HF_HUB_OFFLINE": "1", **environment},
            )  # fmt: skip
        self.wait_for(lambda v: bool(v["daemon"]["running"] and v["daemon"]["pid"]), 60)

    def assert_ticks(self, times: int = 2, seconds: float = 75) -> None:
        """The metrics are written again by a tick, so many times, and the daemon calls itself healthy."""
        end = time.monotonic() + seconds
        for _ in range(times):
            self.metrics.unlink(missing_ok=True)
            while not self.metrics.exists():
                assert time.monotonic() < end, f"no tick for {seconds} s\n{self.log()[-3000:]}"
                time.sleep(0.1)
        assert self.status()["daemon"]["healthy"] is True


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ShiftedService]:
    one = ShiftedService(tmp_path)
    yield one
    if one.process is not None and one.process.poll() is None:
        one.process.send_signal(signal.SIGCONT)
        one.kill()


def stage_of(value: dict[str, Any], name: str) -> dict[str, Any]:
    return next((stage for job in value["jobs"] for stage in job["stages"] if stage["name"] == name), {"state": "", "attempts": 0})


def stamp(service: ShiftedService, row: dict[str, Any]) -> float:
    return datetime.fromisoformat(row["created"]).timestamp() - time.time()


@pytest.mark.slow
@jumps
def test_an_idle_daemon_ticks_and_scans_on_whatever_the_clock_does(service: ShiftedService, pico_checkpoint: Path, seconds: float) -> None:
    service.start_shifted()
    service.assert_ticks(1)
    service.shift.set(seconds)
    service.assert_ticks()
    service.add(pico_checkpoint)
    value = service.wait_for(lambda v: len(v["jobs"]) == 1, 60)
    assert abs(stamp(service, value["jobs"][0]) - seconds) < 120, "the daemon's clock did jump"


@pytest.mark.slow
def test_a_clock_that_was_set_back_does_not_make_the_daemon_call_itself_unwell(service: ShiftedService) -> None:
    """Longer than the time after which a silent heartbeat counts as sickness (three scans and a minute)."""
    service.start_shifted()
    service.shift.set(-HOUR)
    end = time.monotonic() + 80
    while time.monotonic() < end:
        assert service.status()["daemon"]["healthy"] is True, service.log()[-3000:]
        time.sleep(1)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["2026-03-29T01:00:00", "2026-10-25T01:00:00"], ids=["summer time begins", "summer time ends"])
def test_a_daemon_ticks_on_over_a_change_of_summer_time(service: ShiftedService, change: str) -> None:
    service.shift.set(datetime.fromisoformat(change).replace(tzinfo=UTC).timestamp() - time.time() - 8)
    service.start_shifted(TZ="Europe/Berlin")
    service.assert_ticks(3, 100)


def kill_child(service: ShiftedService, stage: str) -> None:
    """As the kernel does when memory is short: that attempt failed, and is tried again later."""
    service.wait_for(lambda v: stage_of(v, stage)["state"] == "running" and bool(service.attempts()), 60)
    for child in service.attempts():
        child.kill()
    service.wait_for(lambda v: stage_of(v, stage)["state"] == "waiting" or stage_of(v, stage)["attempts"] == 2, 60)


@pytest.mark.parametrize("seconds", [-HOUR, pytest.param(HOUR, marks=pytest.mark.slow), pytest.param(-24 * HOUR, marks=pytest.mark.slow)])
def test_a_retry_that_is_due_in_seconds_does_not_wait_for_an_hour(
    service: ShiftedService, pico_checkpoint: Path, seconds: float
) -> None:  # R6.5
    service.start_shifted()
    service.add(pico_checkpoint)
    kill_child(service, "merge")
    service.shift.set(seconds)
    service.wait_for(lambda v: stage_of(v, "merge")["attempts"] == 2, 40)


@pytest.mark.slow
@jumps
def test_a_stage_that_runs_while_the_clock_jumps_is_not_ended_and_not_done_twice(
    service: ShiftedService, pico_checkpoint: Path, seconds: float
) -> None:  # R6.5
    """A second checkpoint comes after the jump: though its record may bear the earlier time, both are exported."""
    service.start_shifted()
    service.add(pico_checkpoint)
    service.wait_for(lambda v: stage_of(v, "reference")["state"] == "running", 90)
    service.shift.set(seconds)
    service.add(pico_checkpoint.with_name("checkpoint-2"))
    jobs = service.wait_ended(2)
    assert {job["state"] for job in jobs} == {"succeeded"}, service.log()[-4000:]
    assert {stage["attempts"] for job in jobs for stage in job["stages"]} == {1}
    assert service.status()["daemon"]["healthy"] is True
    assert (service.exports / "run" / "latest").readlink().name == "step-4"


def test_a_daemon_that_was_suspended_for_seconds_goes_on(service: ShiftedService) -> None:
    """The clock has moved on when it wakes; a real suspend also holds the monotonic clock, which stopping does not."""
    service.start_shifted()
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    service.shift.set(8 * HOUR)
    service.process.send_signal(signal.SIGCONT)
    service.assert_ticks(1)


@pytest.mark.slow
def test_a_job_whose_daemon_and_children_slept_ends_well(service: ShiftedService, pico_checkpoint: Path) -> None:  # R6.5
    service.start_shifted()
    service.add(pico_checkpoint)
    service.wait_for(lambda v: stage_of(v, "reference")["state"] == "running" and bool(service.children()), 90)
    assert service.process is not None
    sleepers = [psutil.Process(service.process.pid), *service.children()]
    for process in sleepers:
        os.kill(process.pid, signal.SIGSTOP)
    time.sleep(10)
    service.shift.set(8 * HOUR)
    for process in reversed(sleepers):
        os.kill(process.pid, signal.SIGCONT)
    (job,) = service.wait_ended()
    assert job["state"] == "succeeded"
    assert {stage["attempts"] for stage in job["stages"]} == {1}
    assert service.status()["daemon"]["healthy"] is True
