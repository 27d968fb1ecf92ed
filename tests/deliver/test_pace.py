"""A limited delivery sends at its rate, on a clock that the test moves."""

from __future__ import annotations

import hashlib
from pathlib import Path

from handlers.deliver.version import BURST_SECONDS, Pace, SourceFile


class Clock:
    def __init__(self) -> None:
        self.now, self.slept = 50.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_a_rate_is_kept_and_a_short_burst_allowed() -> None:
    clock = Clock()
    pace = Pace(1000, lambda: clock.now, clock.sleep)
    for _ in range(100):
        pace.take(100)
    assert 10 - BURST_SECONDS - 0.001 <= clock.slept <= 10


def test_time_in_which_nothing_was_sent_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(1000, lambda: clock.now, clock.sleep)
    pace.take(1000)
    clock.now += 3600
    before = clock.slept
    pace.take(2000)
    assert clock.slept - before >= 2 - BURST_SECONDS - 0.001


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    Pace(0, lambda: clock.now, clock.sleep).take(1 << 40)
    assert clock.slept == 0


def test_parts_are_paced_but_for_what_is_read_for_the_digest_alone(tmp_path: Path) -> None:
    data, clock = bytes(range(250)) * 40, Clock()
    (tmp_path / "file").write_bytes(data)
    file = SourceFile("file", tmp_path / "file", len(data), hashlib.sha256(data).hexdigest(), Pace(1000, lambda: clock.now, clock.sleep))
    assert b"".join(map(bytes, file.parts(3000, 6000))) == data[6000:]
    assert 4 - BURST_SECONDS - 0.001 <= clock.slept <= 4


def test_parts_end_with_the_file_or_are_empty(tmp_path: Path) -> None:
    for data, start, lengths in ((b"", 0, [0]), (b"12345", 0, [2, 2, 1]), (b"12345", 4, [1]), (b"12345", 5, [0])):
        (tmp_path / "file").write_bytes(data)
        file = SourceFile("file", tmp_path / "file", len(data), hashlib.sha256(data).hexdigest())
        assert [len(part) for part in file.parts(2, start)] == lengths
