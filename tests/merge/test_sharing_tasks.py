"""Tasks handed out to threads: all are done, the first error ends the work and is raised."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from handlers.merge.engine.work_queue import run_workers


def share(tasks: Iterable[int], workers: Sequence[Callable[[int], None]]) -> None:
    """Tasks of an iterator, which only one thread may ask at a time."""
    queue, lock = iter(tasks), threading.Lock()

    def take(worker: int) -> int | None:
        with lock:
            return next(queue, None)

    run_workers(take, workers)


def test_every_task_is_done_once_and_begun_in_order() -> None:
    begun: list[int] = []
    names: set[str] = set()
    barrier = threading.Barrier(3)

    def worker(task: int) -> None:
        begun.append(task)
        names.add(threading.current_thread().name)
        if task < 3:
            barrier.wait(timeout=60)  # passes only when three threads work at the same time

    share(range(100), [worker] * 3)
    assert sorted(begun) == list(range(100))
    assert len(names) == 3
    assert threading.current_thread().name in names


def test_an_error_of_a_worker_stops_the_others_and_is_raised() -> None:
    failures: list[int] = []
    done: list[int] = []
    failed = threading.Event()

    def good(task: int) -> None:
        failed.wait(timeout=60)
        time.sleep(0.05)  # the error is known by now
        done.append(task)

    def bad(task: int) -> None:
        failures.append(task)
        failed.set()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        share(range(100), [good, bad])
    assert len(failures) == 1 and len(done) <= 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("merge-")]


def test_an_error_while_tasks_are_made_is_raised_too() -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    done: list[int] = []
    with pytest.raises(ValueError, match="no more"):
        share(tasks(), [done.append, done.append])
    assert done == [1]


def test_an_interruption_in_the_calling_thread_ends_all() -> None:
    def interrupted(task: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(range(100_000), [interrupted, interrupted])
