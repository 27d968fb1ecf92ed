"""An error that one checkpoint meets is listed and said once, keeps no other from being taken, and is over when it is over."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.checkpoints import completeness
from daemon.checkpoints.files import Fingerprint
from daemon.checkpoints.inspection import Inspection
from daemon.contract.disk import answers
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.watching.taking.intake import Intake
from tests.detection.bench import Bench
from tests.detection.helpers import copy_of

ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    MemoryError,
    lambda: RuntimeError("a bug"),
    lambda: Permanent(FaultCode.OS_ERROR, "read", "it is broken", "mend it"),
)


@pytest.mark.parametrize("error", ERRORS, ids=("disk", "memory", "bug", "ours"))
@pytest.mark.parametrize("place", ["read", "take"])
def test_an_error_that_lasts_at_one_checkpoint_is_listed_said_once_and_keeps_no_other_from_its_turn(
    bench: Bench, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception], place: str
) -> None:
    bad, good = (copy_of(pico_checkpoint, bench.root / run / "checkpoint-4", step=4) for run in ("a", "b"))
    if place == "read":
        read = completeness.read_bounded

        def read_bounded(path: Path, most: int) -> bytes:
            if path.parent == bad:
                raise error()
            return read(path, most)

        monkeypatch.setattr(completeness, "read_bounded", read_bounded)
    else:
        take = Intake.take

        def taken(self: Intake, root: Path, found: Inspection, seen: Fingerprint) -> str | None:
            if found.path == bad:
                raise error()
            return take(self, root, found, seen)

        monkeypatch.setattr(Intake, "take", taken)
    with capture_logs() as logs:
        bench.pass_time(30)
    assert [job.checkpoint.run for job in bench.jobs()] == ["b"] and good.is_dir()
    listing = bench.tracker.listing
    assert bad in {**listing.unreadable, **listing.passed_over, **listing.delayed}
    said = [one for one in logs if one["log_level"] in ("warning", "error")]
    assert len(said) == 1, said
    monkeypatch.undo()
    bench.pass_time(30)
    assert [job.checkpoint.run for job in bench.jobs()] == ["b", "a"]
    assert not {**listing.unreadable, **listing.passed_over, **listing.delayed}


def test_a_directory_that_can_not_be_listed_is_told_while_that_lasts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, real = bench.root / "run", os.scandir
    bad.mkdir()

    def scandir(path: str) -> object:
        if str(path) == str(bad):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for _ in range(2):  # said anew when it comes again
        with capture_logs() as logs:
            bench.pass_time(20)
        assert list(bench.tracker.listing.unreadable) == [bad] and "Stale file handle" in bench.tracker.listing.unreadable[bad].sentence()
        assert [one["event"] for one in logs] == [f"Cannot read {bad} (Stale file handle); it is passed over until that changes"]
        with monkeypatch.context() as inner:
            inner.setattr(os, "scandir", real)
            bench.pass_time(20)
            assert not bench.tracker.listing.unreadable


def test_where_no_thread_can_be_had_a_question_fails_and_the_next_one_is_put(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as inner:
        inner.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            answers.ask("x", lambda: 1)
    assert answers.silent_for("x") is None and answers.ask("x", lambda: 1, 5) == 1
