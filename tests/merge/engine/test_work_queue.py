"""The pieces of files as they are handed out: each once, two files at a time, each file closed after its last piece."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from handlers.merge.engine.work_queue import AHEAD, FileInProgress, Piece, PieceQueue, joined, run_workers
from handlers.tensors.file_io import ByteRange

Plan = tuple[str, int]
Buffers = list[str]


class Work:
    """Files of so many pieces, each of which notes its name, and of so many checks; and what became of the files."""

    def __init__(self, *plans: Plan, checks: int = 0) -> None:
        self.checks = checks
        self.begun: list[str] = []
        self.closed: list[str] = []
        self.queue: PieceQueue[Plan, Buffers] = PieceQueue(plans, self._begin)

    def _begin(self, plan: Plan) -> FileInProgress[Buffers]:
        name, count = plan
        self.begun.append(name)
        stack = contextlib.ExitStack()
        stack.callback(self.closed.append, name)
        pieces = [Piece(functools.partial(_note, f"{name}{number}")) for number in range(count)]
        checks = [Piece(functools.partial(_note, f"{name} checked {number}")) for number in range(self.checks)]
        return FileInProgress(name, pieces, stack, checks)

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


def test_a_written_file_is_checked_by_whoever_comes_before_anything_else_and_closed_after_that() -> None:
    work = Work(("a", 2), ("b", 9), checks=2)
    assert [work.next(worker) for worker in (0, 1, 0)] == ["a0", "b0", "a1"]
    assert work.closed == []
    assert [work.next(1), work.next(0)] == ["a checked 0", "a checked 1"]
    assert work.closed == ["a"]
    assert work.next(1) == "b1"


def test_a_file_without_pieces_is_only_checked() -> None:
    work = Work(("a", 0), ("b", 1), checks=1)
    assert [work.next(0) for _ in range(5)] == ["a checked 0", "b0", "b checked 0", None, None]
    assert work.closed == ["a", "b"]


@pytest.mark.parametrize("stopped", [False, True])
def test_who_has_nothing_to_do_waits_for_the_checks_of_what_another_still_writes(stopped: bool) -> None:
    work = Work(("a", 1), checks=2)
    taken = work.queue.take(0)
    assert taken is not None
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.append(work.next(1)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive() and found == []
    if stopped:
        work.queue.stop()
    else:
        work.queue.done(taken[0])
    waiting.join(60)
    assert found == [None if stopped else "a checked 0"]


def test_pieces_that_follow_each_other_in_a_file_become_one_up_to_a_size() -> None:
    few = [
        *pieces(5),
        Piece(functools.partial(_note, "header")),
        ranged("elsewhere", 500),
        ranged("after it", 510),
        ranged("large", 520, 99),
    ]
    done: list[list[str]] = []
    sources = []
    for piece in joined(few, 30):
        noted: Buffers = []
        piece.do(noted)
        done.append(noted)
        sources.append(piece.source and (piece.source.start, piece.source.size))
    assert done == [["0", "1", "2"], ["3", "4"], ["header"], ["elsewhere", "after it"], ["large"]]
    assert sources == [(0, 30), (30, 20), None, (500, 20), (520, 99)]


def test_what_an_error_left_is_closed() -> None:
    work = Work(("a", 2), ("b", 2), ("c", 2))
    assert [work.next(worker) for worker in (0, 1, 1)] == ["a0", "c0", "c1"]
    work.queue.close()
    assert work.closed == ["c", "a"] and work.begun == ["a", "c"]


def test_many_threads_do_every_piece_once() -> None:
    plans = [(f"file{number}-", 1 + number % 7) for number in range(60)]
    work, done, finished = Work(*plans, checks=2), [[] for _ in range(5)], []  # type: ignore[var-annotated]
    barrier = threading.Barrier(5)

    def do(tool: Buffers, task: tuple[FileInProgress[Buffers], Piece[Buffers]]) -> None:
        if not tool:
            barrier.wait(60)  # all of them have one
        task[1].do(tool)
        if work.queue.done(task[0]):
            finished.append(task[0].name)

    run_workers(work.queue.take, [functools.partial(do, tool) for tool in done])
    expected = [f"{name}{piece}" for name, count in plans for piece in range(count)]
    expected += [f"{name} checked {number}" for name, _ in plans for number in range(2)]
    assert sorted(name for tool in done for name in tool) == sorted(expected)
    assert sorted(finished) == sorted(work.closed) == sorted(name for name, _ in plans)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("fails", [0, 1], ids=["the calling thread", "another thread"])
def test_an_error_of_a_worker_stops_the_others_and_is_raised(error: BaseException, fails: int) -> None:
    tasks, lock, failed, done = iter(range(100)), threading.Lock(), threading.Event(), list[int]()

    def take(worker: int) -> int | None:
        with lock:
            return next(tasks, None)

    def good(task: int) -> None:
        assert failed.wait(60)
        time.sleep(0.05)  # the error is known by now
        done.append(task)

    def bad(task: int) -> None:
        failed.set()
        raise error

    with pytest.raises(type(error)):
        run_workers(take, [bad, good] if fails == 0 else [good, bad])
    assert len(done) <= 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("merge-")]


def test_an_error_while_tasks_are_handed_out_is_raised_too() -> None:
    def take(worker: int) -> int | None:
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        run_workers(take, [print, print])


def ranged(name: str, start: int, size: int = 10) -> Piece[Buffers]:
    return Piece(functools.partial(_note, name), ByteRange(Path("file"), 7, start, size))


def pieces(count: int) -> list[Piece[Buffers]]:
    return [ranged(str(number), 10 * number) for number in range(count)]


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
