"""A checkpoint that is written in place, with the size and the time that its files had, is another one all the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

from daemon.checkpoints.pinning import pins
from tests.detection.bench import Bench
from tests.detection.helpers import change_weights, copy_of


def rewrite(checkpoint: Path) -> None:
    """Other weights in the same file, with its size and its time."""
    file = checkpoint / "adapter_model.safetensors"
    before = file.stat()
    time.sleep(0.02)  # the kernel counts the times of files in steps of some milliseconds
    data = bytearray(file.read_bytes())
    data[-8:-4] = b"\x01\x02\x03\x04"
    with file.open("r+b") as stream:
        stream.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def test_a_rewrite_with_equal_size_and_time_is_exported(bench: Bench, pico_checkpoint: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    bench.pass_time(30.0)
    (first,) = bench.jobs()
    rewrite(checkpoint)
    bench.pass_time(30.0)
    (second,) = bench.jobs()
    assert (second.id != first.id, second.checkpoint.path) == (True, first.checkpoint.path)
    rewrite(checkpoint)  # with what it has already
    bench.pass_time(30.0)
    assert bench.jobs() == [second]


def test_permissions_links_and_a_restart_make_no_other_export_and_are_looked_into_once(
    bench: Bench, pico_checkpoint: Path, monkeypatch
) -> None:
    checkpoint = copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    bench.pass_time(30.0)
    jobs, made = [job.id for job in bench.jobs()], []
    identify = pins.identify
    monkeypatch.setattr("daemon.watching.taking.intake.identify", lambda pin: made.append(pin) or identify(pin))
    os.link(checkpoint / "adapter_model.safetensors", bench.root.parent / "backup")
    bench.pass_time(30.0)
    bench.restart()
    bench.pass_time(30.0)
    assert made == [], "a name more is no other content"
    (checkpoint / "adapter_model.safetensors").chmod(0o600)
    bench.pass_time(60.0)
    bench.restart()
    bench.pass_time(60.0)
    assert len(made) == 1 and [job.id for job in bench.jobs()] == jobs


def test_a_rewrite_while_no_daemon_ran_is_seen(bench: Bench, pico_checkpoint: Path) -> None:
    checkpoint = copy_of(pico_checkpoint, bench.root / "run" / "checkpoint-4")
    bench.pass_time(30.0)
    (first,) = bench.jobs()
    rewrite(checkpoint)
    bench.restart()
    bench.pass_time(30.0)
    assert [job.id for job in bench.jobs()] != [first.id]
    change_weights(checkpoint, 0.5)
    bench.pass_time(60.0)
    assert len(bench.jobs()) == 1
