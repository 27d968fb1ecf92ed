"""The pieces of files as they are handed out: each once, two files at a time, each file closed after its last piece."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from handlers.merge.engine.work_queue import AHEAD, FileInProgress, Piece, PieceQueue, run_workers
from handlers.merge.weights.file_io import ByteRange

Plan = tuple[str, int]
Buffers = list[str]


class Work:
    """Files of so many pieces, each of which notes its name; and what became of the files."""

    def __init__(self, *plans: Plan) -> None:
        self.begun: list[str] = []
        self.closed: list[str] = []
        self.queue: PieceQueue[Plan, Buffers] = PieceQueue(plans, self._begin)

    def _begin(self, plan: Plan) -> FileInProgress[Buffers]:
        name, count = plan
        self.begun.append(name)
        stack = contextlib.ExitStack()
        stack.callback(self.closed.append, name)
        return FileInProgress(name, [Piece(functools.partial(_note, f"{name}{number}")) for number in range(count)], stack)

    def next(self, worker: int) -> str | None:
        """The next piece for a worker, done at once."""
        taken = self.queue.take(worker)
        if taken is None:
            return None
        file, piece = taken
        noted: Buffers = []
        piece.do(noted)
        self.queue.done(file)
        return noted[0]


def _note(name: str, tool: Buffers) -> None:
    tool.append(name)


def test_workers_begin_with_the_first_and_the_last_file_and_meet() -> None:
    work = Work(("a", 2), ("b", 3), ("c", 1))
    assert [work.next(0), work.next(1), work.next(0)] == ["a0", "c0", "a1"]
    assert work.begun == ["a", "c"] and work.closed == ["c", "a"]
    # The second worker begins the last file that is left; the first one helps, from that file's end.
    assert [work.next(1), work.next(0), work.next(1)] == ["b0", "b2", "b1"]
    assert (work.next(0), work.next(1)) == (None, None)
    assert work.begun == ["a", "c", "b"] and work.closed == ["c", "a", "b"]


def test_one_file_is_taken_from_both_ends() -> None:
    work = Work(("a", 4))
    assert [work.next(worker) for worker in (0, 1, 1, 0, 0)] == ["a0", "a3", "a2", "a1", None]


def test_one_worker_goes_through_all_in_order() -> None:
    work = Work(("a", 2), ("b", 1), ("c", 2))
    assert [work.next(0) for _ in range(6)] == ["a0", "a1", "b0", "c0", "c1", None]


def test_a_file_is_closed_when_its_last_piece_is_done_and_not_when_it_is_taken() -> None:
    work = Work(("a", 2))
    first, second = work.queue.take(0), work.queue.take(1)
    assert first is not None and second is not None
    assert not work.queue.done(second[0]) and not work.closed
    assert work.queue.done(first[0]) and work.closed == ["a"]
    work.queue.close()
    assert work.closed == ["a"]


def test_what_an_error_left_is_closed() -> None:
    work = Work(("a", 2), ("b", 2), ("c", 2))
    assert [work.next(worker) for worker in (0, 1, 1)] == ["a0", "c0", "c1"]
    work.queue.close()
    assert work.closed == ["c", "a"] and work.begun == ["a", "c"]


def test_many_threads_do_every_piece_once() -> None:
    plans = [(f"file{number}-", 1 + number % 7) for number in range(60)]
    work, done, finished = Work(*plans), [[] for _ in range(5)], []  # type: ignore[var-annotated]
    barrier = threading.Barrier(5)

    def do(tool: Buffers, task: tuple[FileInProgress[Buffers], Piece[Buffers]]) -> None:
        if not tool:
            barrier.wait(60)  # all of them have one
        task[1].do(tool)
        if work.queue.done(task[0]):
            finished.append(task[0].name)

    run_workers(work.queue.take, [functools.partial(do, tool) for tool in done])
    assert sorted(name for tool in done for name in tool) == sorted(f"{name}{piece}" for name, count in plans for piece in range(count))
    assert sorted(finished) == sorted(work.closed) == sorted(name for name, _ in plans)


def pieces(count: int) -> list[Piece[Buffers]]:
    return [Piece(functools.partial(_note, str(number)), ByteRange(Path("file"), 7, 10 * number, 10)) for number in range(count)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the operation is asked for; descriptor 7 is no file."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: calls.append(arguments))
    return calls


@pytest.mark.parametrize("last", [False, True])
def test_the_kernel_is_asked_for_the_first_pieces_and_for_what_comes_some_later(last: bool, asked: list[tuple[Any, ...]]) -> None:
    begun = FileInProgress("a", [Piece(functools.partial(_note, "header")), *pieces(AHEAD + 2)], contextlib.ExitStack())
    for _ in range(3):
        begun.take(last=last)
    first = [10 * number for number in range(AHEAD - 1)]
    later = [10, 0] if last else [10 * (AHEAD - 1), 10 * AHEAD, 10 * (AHEAD + 1)]
    assert asked == [(7, place, 10, os.POSIX_FADV_WILLNEED) for place in (*first, *later)]
