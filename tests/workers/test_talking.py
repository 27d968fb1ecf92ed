"""What children say, or don't: progress, heartbeats and logs, in any amount and of any kind."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.disk import attempt_log
from daemon.contract.jobs.messages import Outcome
from daemon.running.attempts import progress_channel as channel_module
from daemon.running.attempts.executor import wait_for_news
from daemon.running.attempts.progress_channel import Channel, Progress
from daemon.system.processes import procfs
from tests.workers.helpers import BOUNDS, SHORT, Start, fault_of, until, wait


def test_a_child_that_stands_still_is_hung(start: Start) -> None:
    fault = fault_of(wait(start("stopped", silence=1.0, **SHORT)))
    assert fault.code == "hung"


def test_a_child_that_says_nothing_is_hung(start: Start) -> None:
    assert fault_of(wait(start("sleeps", silence=1.0, **SHORT))).code == "hung"


@pytest.mark.slow
def test_a_child_that_beats_is_not_hung_but_runs_out_of_time(start: Start) -> None:
    started = time.monotonic()
    fault = fault_of(wait(start("beats", silence=2.0, timeout=5.0, **SHORT)))
    assert fault.code == "timeout"
    assert time.monotonic() - started >= 5.0


def test_a_pause_of_the_daemon_is_not_the_childs_silence(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start("beats", silence=6.0, timeout=6.0)
    until(worker, lambda: worker._heard > worker.started)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    os.kill(worker.process.pid, signal.SIGSTOP)
    assert worker.poll() is None
    assert worker._kill_at is None, "after an hour in which nobody looked the child gets a fresh period"
    os.kill(worker.process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_child_that_gets_no_cpu_is_neither_hung_nor_late_as_long_as_that_lasts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    real = procfs.cpu_times
    monkeypatch.setattr(procfs, "cpu_times", lambda _pids: {7: (0.0, 0.0, True)})  # ready to run, and others do
    worker = start("sleeps", silence=2.5, timeout=2.5, **SHORT)
    until(worker, lambda: time.monotonic() - worker.started > 6)
    assert worker._kill_at is None
    monkeypatch.setattr(procfs, "cpu_times", real)
    assert fault_of(wait(worker)).code in ("hung", "timeout")


def test_garbage_among_the_progress_is_dropped(start: Start) -> None:  # R6.1
    worker = start("garbage_progress")
    assert wait(worker).outcome is Outcome.SUCCEEDED
    assert worker.progress.fraction == 0.75
    assert worker.progress.message == "and  [31mon"
    assert len(worker.warnings) == 200
    assert worker.warnings[149:151] == ["warning 149", "more"]


def test_a_hundred_megabytes_of_progress_cost_neither_memory_nor_time(start: Start) -> None:  # R6.1
    before = procfs.memory([os.getpid()])
    worker = start("much_progress")
    longest, used = 0.0, 0
    deadline = time.monotonic() + 200
    while not worker.ended:
        spent = time.thread_time()
        worker.poll()
        longest = max(longest, time.thread_time() - spent)
        used = max(used, procfs.memory([os.getpid()]) - before)
        assert time.monotonic() < deadline
    assert wait(worker).outcome is Outcome.SUCCEEDED
    assert worker.progress.fraction == 0.5
    assert used < 32 << 20
    assert longest < 0.25, "of processor time; it takes some milliseconds"


@pytest.mark.parametrize("holes", [True, False])
def test_a_hundred_megabytes_of_log_are_cut_to_its_beginning_and_its_end(  # R6.4
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    def no_holes(file: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no holes here")

    if not holes:
        monkeypatch.setattr(attempt_log, "_punch", no_holes)
    worker = start("much_log")
    log = tmp_path / "attempt/log.txt"
    assert wait(worker).outcome is Outcome.SUCCEEDED
    assert log.stat().st_size <= BOUNDS.log_size
    text = log.read_text()
    lines = text.splitlines()
    assert lines[0] == "the first line"
    assert lines[-1] == "the last line" or not holes
    (note,) = (line for line in lines if "were removed here" in line)
    cut = int(note.split("about ")[1].split(" bytes")[0].replace(",", ""))
    assert (95_000_000 if holes else 1_000_000) < cut < 101_000_000
    assert "\0" not in text


def test_a_log_that_is_being_written_takes_no_more_disk_than_its_limit(tmp_path: Path) -> None:
    log = attempt_log.AttemptLog(tmp_path / "log.txt", 1 << 20)
    with open(log.path, "ab", buffering=0) as writer:
        for number in range(200):
            writer.write(b"%06d " % number + b"x" * 100_000 + b"\n")
            log.trim()
            os.fsync(writer.fileno())
            assert log.path.stat().st_blocks * 512 <= (1 << 20) + 2 * 4096
            assert log.end().endswith("x\n")
    log.finish()
    text = log.path.read_text()
    assert text.startswith("000000 x")
    assert text.splitlines()[-1].startswith("000199 x")
    assert "\0" not in text


@pytest.fixture
def pipe() -> Iterator[tuple[Channel, int]]:
    """A channel and the end that writes to it."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield Channel(reading), writing
    os.close(reading)
    os.close(writing)


def test_a_line_without_an_end_is_not_kept(pipe: tuple[Channel, int]) -> None:
    channel, writing = pipe
    for _ in range(50):
        os.write(writing, b"x" * 60_000)
        assert not channel.read()
        assert len(channel._buffer) <= channel_module.LINE_LIMIT
    os.write(writing, b'{"fraction": 1, "message": "still a part of it"}\n{"fraction": 0.25, "message": "next"}\n')
    assert channel.read()
    assert channel.progress == Progress(0.25, "next")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", '"x"', "null", "1e999", "9" * 5000])
def test_a_fraction_that_is_no_number_changes_nothing(pipe: tuple[Channel, int], number: str) -> None:
    channel, writing = pipe
    os.write(writing, f'{{"fraction": {number}, "message": "odd"}}\n'.encode())
    assert not channel.read()
    assert channel.progress == Progress()


def test_a_heartbeat_is_a_sign_of_life_and_no_progress(pipe: tuple[Channel, int]) -> None:
    channel, writing = pipe
    os.write(writing, b'{"heartbeat": 7}\n')
    assert channel.read()
    assert channel.progress == Progress()
    assert not channel.read()


def test_what_a_child_says_is_no_reason_for_a_round_and_its_end_is(start: Start) -> None:
    worker = start("beats", silence=60.0, timeout=60.0)
    until(worker, lambda: worker._heard > worker.started)
    began = time.monotonic()
    wait_for_news([worker], 1.0)
    assert time.monotonic() - began >= 1.0
    worker.hurry()
    began = time.monotonic()
    wait_for_news([worker], 600.0)
    assert time.monotonic() - began < 300.0
    wait(worker)
