"""An attempt may write on the disk of its own machine: its output is copied, read back, and nothing of it stays there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.disk.files import FileEntry, sha256_file
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from handlers.child.scratch import NotCopied, copy_out
from tests.cluster.bench import Bench, outcome, result_of, runs, until
from tests.cluster.failures import fake_of
from tests.workers.helpers import make_context


@pytest.fixture
def scratch(tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the machine's disk that the bench's attempts write in, which a variable there names."""
    folder = tmp_path / "local-disk"
    folder.mkdir()
    monkeypatch.setenv("NODE_DISK", str(folder))
    bench.executor.terms = dataclasses.replace(bench.executor.terms, scratch="$NODE_DISK")
    return folder


def test_the_output_is_written_there_and_copied_when_it_is_finished(bench: Bench, scratch: Path) -> None:
    attempt = bench.start(held=True)
    staging = Path(attempt.context.staging)
    until(lambda: runs(attempt))
    (staging / "old.bin").write_text("of an attempt before this one")
    assert [path.name for path in scratch.iterdir()] == [f"ckptd-{attempt.orders.token}"]
    bench.release(attempt)
    result = result_of(attempt)
    assert result.outcome is Outcome.SUCCEEDED, result
    assert [(entry.path, entry.sha256) for entry in result.files] == [("out.bin", sha256_file(staging / "out.bin"))]
    assert os.listdir(staging) == ["out.bin"]
    assert os.listdir(scratch) == []


def test_nothing_stays_there_of_one_that_failed_and_no_room_is_said(bench: Bench, scratch: Path) -> None:
    order = bench.order()
    (order.folder / "full").touch()
    attempt = bench.executor.start(order)
    result = result_of(attempt)  # type: ignore[arg-type]
    assert result.fault is not None and result.fault.code == FaultCode.SCRATCH_UNUSABLE, result
    assert f"{scratch} has no room" in result.fault.cause
    assert os.listdir(scratch) == os.listdir(order.context.staging) == []


@contextlib.contextmanager
def small(folder: Path, mebibytes: int = 1) -> Iterator[None]:
    """A file system of so many MiB at a folder."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may mount no file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def large(bench: Bench) -> tuple[StageResult, Path]:
    """The result of an attempt that writes 3 MiB, and its staging folder."""
    order = bench.order()
    (order.folder / "large").write_text(str(3 << 20))
    return result_of(bench.executor.start(order)), Path(order.context.staging)  # type: ignore[arg-type]


def test_a_disk_of_that_machine_that_is_too_small_is_said_and_one_with_room_serves_the_next_attempt(bench: Bench, scratch: Path) -> None:
    with small(scratch):
        result, staging = large(bench)
        assert result.outcome is Outcome.RETRYABLE and result.fault is not None, result
        assert result.fault.code == FaultCode.SCRATCH_UNUSABLE and f"{scratch} has no room" in result.fault.cause
        assert os.listdir(scratch) == os.listdir(staging) == []
        with open(scratch / "of somebody", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space left"):
            while True:
                filler.write(bytes(1 << 12))
        result, staging = large(bench)
        assert result.fault is not None and result.fault.code == FaultCode.SCRATCH_UNUSABLE, result
        assert os.listdir(scratch) == ["of somebody"] and os.listdir(staging) == []
        subprocess.run(["mount", "-o", "remount,size=8m", str(scratch)], check=True)
        result, staging = large(bench)
        assert result.outcome is Outcome.SUCCEEDED, result
        assert os.listdir(scratch) == ["of somebody"] and (staging / "large.bin").stat().st_size == 3 << 20


def test_an_output_that_has_no_room_for_the_copy_is_a_full_disk_and_keeps_no_part_of_it(bench: Bench, scratch: Path) -> None:
    shared = bench.folder / "staging"
    shared.mkdir()
    with small(shared):
        result, staging = large(bench)
        assert result.outcome is Outcome.RETRYABLE and result.fault is not None, result
        assert result.fault.code == FaultCode.DISK_FULL and str(result.fault.path).startswith(str(shared))
        assert os.listdir(scratch) == os.listdir(staging) == []
        subprocess.run(["mount", "-o", "remount,size=8m", str(shared)], check=True)
        result, staging = large(bench)
        assert result.outcome is Outcome.SUCCEEDED, result
        assert sorted(os.listdir(staging)) == ["large.bin", "out.bin"]


@pytest.mark.parametrize("all_of_it", [False, True], ids=["its-own-folder", "all-of-it"])
def test_a_scratch_folder_that_goes_away_meanwhile_is_said_and_is_no_source_that_is_waited_for(
    bench: Bench, scratch: Path, all_of_it: bool
) -> None:
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    shutil.rmtree(scratch if all_of_it else scratch / f"ckptd-{attempt.orders.token}")
    bench.release(attempt)
    result = result_of(attempt)
    assert result.fault is not None and result.fault.code == FaultCode.SCRATCH_UNUSABLE, result
    assert "was removed" in result.fault.cause
    assert os.listdir(attempt.context.staging) == []


@pytest.mark.slow
def test_what_a_killed_attempt_left_there_is_removed_by_the_next_but_not_what_lives(bench: Bench, scratch: Path) -> None:
    killed, living = bench.start(held=True), bench.start(held=True)
    until(lambda: runs(killed) and runs(living))
    fake_of(bench).signal(killed.orders.token, signal.SIGKILL)
    assert outcome(killed)[0] is Outcome.RETRYABLE
    (scratch / "ckptd-of-somebody").mkdir()
    assert outcome(bench.start()) == (Outcome.SUCCEEDED, None)
    assert sorted(os.listdir(scratch)) == sorted([f"ckptd-{living.orders.token}", "ckptd-of-somebody"])
    bench.release(living)
    assert outcome(living) == (Outcome.SUCCEEDED, None)


def test_a_machine_without_that_folder_is_said_before_anything_runs(bench: Bench, scratch: Path) -> None:
    scratch.rmdir()
    result = result_of(bench.start())
    assert result.fault is not None and result.fault.code == FaultCode.SCRATCH_UNUSABLE and str(scratch) in str(result.fault.path)
    assert bench.begun() == [] and not scratch.exists()


def job(folder: Path) -> tuple[Path, StageContext, FileEntry]:
    """A source with a file, and the job whose staging folder it is to be copied to."""
    source, staging = folder / "source", folder / "staging"
    (source / "below").mkdir(parents=True)
    staging.mkdir()
    (source / "below/a").write_text("contents")
    context = make_context(folder).model_copy(update={"staging": str(staging), "staging_inode": os.lstat(staging).st_ino})
    return source, context, FileEntry(path="below/a", size=8, sha256=sha256_file(source / "below/a"))


def test_a_copy_that_reads_back_with_other_contents_does_not_count(tmp_path: Path) -> None:
    source, context, entry = job(tmp_path)
    copy_out(source, context, (entry,), lambda: True)
    assert sha256_file(Path(context.staging, "below/a")) == entry.sha256
    (source / "below/a").write_text("CONTENTS")
    with pytest.raises(NotCopied, match="below/a reads back with other contents"):
        copy_out(source, context, (entry,), lambda: True)


def test_a_zombie_copies_into_no_folder_but_its_own(tmp_path: Path) -> None:
    source, context, entry = job(tmp_path)
    Path(context.staging).rename(tmp_path / "taken away")
    Path(context.staging).mkdir()
    with pytest.raises(NotCopied, match="replaced by another one"):
        copy_out(source, context, (entry,), lambda: True)
    assert os.listdir(context.staging) == []


def test_one_that_is_fenced_copies_no_further(tmp_path: Path) -> None:
    source, context, entry = job(tmp_path)
    with pytest.raises(NotCopied, match="was ended meanwhile"):
        copy_out(source, context, (entry,), lambda: False)
