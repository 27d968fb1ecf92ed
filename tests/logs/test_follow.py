"""`ckptd logs` reads the file back: its end, what comes after, across rotations and half-written lines."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.operating.log.reading import follow


def line(number: int) -> str:
    return json.dumps({"event": "e", "number": number}) + "\n"


def numbers(records: Any) -> list[int]:
    return [record["number"] for record in records]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ckptd.log"


Following = Callable[[], "queue.Queue[dict[str, Any]]"]


@pytest.fixture
def following(file: Path) -> Iterator[Following]:
    """Starts a reader in a thread; gives the queue into which it puts each record."""
    threads: list[threading.Thread] = []
    stop = threading.Event()

    def start() -> queue.Queue[dict[str, Any]]:
        got: queue.Queue[dict[str, Any]] = queue.Queue()

        def read() -> None:
            for record in follow(file, tail=10, forever=True):
                if stop.is_set():
                    return
                got.put(record)

        threads.append(threading.Thread(target=read))
        threads[-1].start()
        return got

    yield start
    stop.set()
    with open(file, "a") as stream:
        stream.write("\n" + line(-1))
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def number_of(got: queue.Queue[dict[str, Any]]) -> object:
    """The number of the next record; raises queue.Empty when none comes."""
    return got.get(timeout=5).get("number")


@pytest.mark.parametrize(("tail", "expected"), [(2, [3, 4]), (10, [0, 1, 2, 3, 4]), (0, [])])
def test_the_last_lines_are_given(file: Path, tail: int, expected: list[int]) -> None:
    file.write_text("".join(map(line, range(5))))
    assert numbers(follow(file, tail=tail, forever=False)) == expected


def test_a_file_that_is_not_there_has_no_lines(file: Path) -> None:
    assert list(follow(file, tail=5, forever=False)) == []


def test_a_line_that_is_no_json_is_shown_as_it_is(file: Path) -> None:
    file.write_text("Fatal Python error: Segmentation fault\n[1]\n" + line(1))
    events = [record.get("message", record.get("event")) for record in follow(file, tail=5, forever=False)]
    assert events == ["Fatal Python error: Segmentation fault", "[1]", "e"]


def test_new_lines_come_as_they_are_written_and_half_a_line_only_when_it_is_whole(file: Path, following: Following) -> None:  # R6.1
    file.write_text(line(0))
    got = following()
    assert number_of(got) == 0
    text = line(1)
    with open(file, "a", buffering=1) as stream:
        stream.write(text[:8])
        stream.flush()
        with pytest.raises(queue.Empty):
            got.get(timeout=0.8)  # longer than the reader's own pause, so that it has looked at the half line
        stream.write(text[8:])
    assert number_of(got) == 1


def test_nothing_is_lost_or_given_twice_when_the_file_is_rotated(file: Path, following: Following) -> None:
    file.write_text(line(0))
    got = following()
    assert number_of(got) == 0
    with open(file, "a") as stream:
        stream.write(line(1))
    os.rename(file, file.with_name("ckptd.log.1"))
    file.write_text(line(2))
    assert [number_of(got) for _ in range(2)] == [1, 2]
    with open(file, "a") as stream:
        stream.write(line(3))
    assert number_of(got) == 3


def test_a_file_that_comes_later_is_read_from_its_beginning(file: Path, following: Following) -> None:
    got = following()
    file.write_text(line(7))
    assert number_of(got) == 7


def test_bytes_that_are_no_text_do_not_make_lines_come_again(file: Path, following: Following) -> None:
    file.write_bytes(b"\xff\xfe\xfd\xfc broken by a crash\r\n" + line(1).encode())
    got = following()
    got.get(timeout=5)
    assert number_of(got) == 1
    with open(file, "a") as stream:
        stream.write(line(2))
    assert number_of(got) == 2
