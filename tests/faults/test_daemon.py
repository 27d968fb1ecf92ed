"""The daemon on disks that fail for a while: it lives on, says so in a sentence, and finishes the job afterwards."""

from __future__ import annotations

import errno
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.layer import Faults, Rule
from tests.faults.services import FaultyService, assert_said, assert_went_on

FAULTY_SECONDS = 3.0
HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[FaultyService]:
    one = FaultyService(tmp_path)
    yield one
    if one.process is not None and one.process.poll() is None:
        one.kill()


def running(value: dict[str, Any]) -> bool:
    return bool(value["daemon"]["running"] and value["daemon"]["pid"])


CASES: dict[str, Callable[[FaultyService], Rule]] = {
    "the state can't be synced": lambda s: Rule("fsync", errno.EIO, calls=None, below=s.state),
    "the state can't be written": lambda s: Rule("write", errno.ENOSPC, calls=None, below=s.state),
    "the output can't be written": lambda s: Rule("write", errno.ENOSPC, calls=None, below=s.exports),
    "no more files can be opened": lambda s: Rule("open", errno.EMFILE, calls=None, below=s.folder),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("moment", ["arrival", "merge", "reference"])
def test_the_daemon_outlives_a_failing_disk_and_then_finishes_the_job(
    service: FaultyService, pico_checkpoint: Path, case: str, moment: str
) -> None:  # R6.2 R6.5
    with Faults(kinds=("fsync", "write", "open")) as faults:
        service.start_under(faults)
        service.wait_for(running, 60)
        if moment == "arrival":
            faults.set(CASES[case](service))
        service.add(pico_checkpoint)
        if moment != "arrival":
            service.wait_stage(moment)
            faults.set(CASES[case](service))
        time.sleep(FAULTY_SECONDS)
        assert service.process is not None
        assert service.process.poll() is None, service.log()[-4000:]
        faults.set()
        assert_went_on(service)


@pytest.mark.slow
def test_a_full_output_is_told_in_a_sentence_and_waited_for(service: FaultyService, pico_checkpoint: Path) -> None:  # R6.2
    with Faults(kinds=("mkdir",)) as faults:
        service.start_under(faults)
        service.wait_for(running, 60)
        faults.set(Rule("mkdir", errno.ENOSPC, calls=None, below=service.exports))
        service.add(pico_checkpoint)
        service.wait_for(lambda _: bool(faults.failed), 60)
        time.sleep(FAULTY_SECONDS)
        faults.set()
        assert_went_on(service)
    assert_said(service, "Could not", "No space left on device", at_most=2)


@pytest.mark.slow
def test_a_daemon_without_file_handles_goes_on_once_there_are_some(service: FaultyService, pico_checkpoint: Path) -> None:  # R6.2
    service.start()
    service.wait_for(running, 60)
    assert service.process is not None
    process = psutil.Process(service.process.pid)
    before = process.rlimit(resource.RLIMIT_NOFILE)
    process.rlimit(resource.RLIMIT_NOFILE, (4, before[1]))
    service.add(pico_checkpoint)
    time.sleep(FAULTY_SECONDS + 3)
    assert service.process.poll() is None, service.log()[-4000:]
    process.rlimit(resource.RLIMIT_NOFILE, before)
    assert_went_on(service)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [3.0, pytest.param(26.0, marks=pytest.mark.slow)])
def test_a_journal_that_another_process_holds_is_waited_for(service: FaultyService, pico_checkpoint: Path, seconds: float) -> None:  # R6.5
    """The longer one outlasts the time that SQLite waits by itself."""
    service.start()
    service.wait_for(running, 60)
    journal = service.state / "journal.sqlite3"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(journal), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        service.add(pico_checkpoint)
    assert holder.returncode == 0
    assert_went_on(service)
    with sqlite3.connect(journal) as raw:
        assert raw.execute("SELECT max(attempts) FROM stage").fetchone() == (1,), "nothing was done twice"
    raw.close()


@pytest.mark.slow
def test_an_output_that_becomes_read_only_is_waited_for(service: FaultyService, pico_checkpoint: Path) -> None:  # R6.2
    service.start_with_disk(service.exports, "400m")
    service.wait_for(running, 60)
    service.add(pico_checkpoint)
    service.wait_stage("reference")
    service.remount(service.exports, "ro")
    service.wait_for(lambda _: "Read-only file system" in service.log(), 90)
    time.sleep(FAULTY_SECONDS)
    service.remount(service.exports, "rw")
    assert_went_on(service, service.inside(service.exports))
    assert_said(service, "Could not", "Read-only file system", at_most=2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["merge", "reference"])
def test_an_output_that_was_removed_under_the_daemon_is_made_again(
    service: FaultyService, pico_checkpoint: Path, stage: str
) -> None:  # R6.5
    service.start()
    service.wait_for(running, 60)
    service.add(pico_checkpoint)
    service.wait_stage(stage)
    end = time.monotonic() + 10
    while service.exports.exists() and time.monotonic() < end:
        shutil.rmtree(service.exports, ignore_errors=True)
    assert_went_on(service)


@pytest.mark.slow
def test_a_state_directory_without_room_is_told_and_waited_for(service: FaultyService, pico_checkpoint: Path) -> None:  # R6.2
    service.start_with_disk(service.state, "12m")
    service.wait_for(running, 60)
    filler = service.inside(service.state) / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(4096))
    service.add(pico_checkpoint)
    time.sleep(FAULTY_SECONDS + 3)
    assert service.process is not None
    assert service.process.poll() is None, service.log()[-4000:]
    filler.unlink()
    assert_went_on(service)
    assert_said(service, "Could not pin the checkpoint", "are free", at_most=10)
