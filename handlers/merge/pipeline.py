"""Threads that work on one merge: tasks shared among equal workers, or a pipeline of reader, compute and writer.

Called by the streaming merge. The first error of any part stops the others and is raised in the caller; no part can
wait for one that has gone. One of the threads is always the calling one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Task = TypeVar("Task")


class Stopped(Exception):
    """Another part of the pipeline has failed; its error is the one that counts."""


class Gate:
    """What the parts share: one lock, and whether the work still goes on."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Stop all parts; the first error is kept."""
        with self.condition:
            if self.error is None:
                self.error = error
            self.condition.notify_all()


class Channel(Generic[Item]):
    """A bounded queue that ends: `get` gives None after `close`, and both ends raise Stopped after a failure."""

    def __init__(self, gate: Gate, limit: int) -> None:
        self._gate = gate
        self._limit = limit
        self._items: deque[Item] = deque()
        self._closed = False

    def put(self, item: Item) -> None:
        """Append an item, waiting while the channel is full."""
        condition = self._gate.condition
        with condition:
            condition.wait_for(lambda: self._gate.error is not None or len(self._items) < self._limit)
            if self._gate.error is not None:
                raise Stopped
            self._items.append(item)
            condition.notify_all()

    def get(self) -> Item | None:
        """The next item, or None when the channel is closed and empty."""
        condition = self._gate.condition
        with condition:
            condition.wait_for(lambda: self._gate.error is not None or self._items or self._closed)
            if self._gate.error is not None:
                raise Stopped
            if not self._items:
                return None
            item = self._items.popleft()
            condition.notify_all()
            return item

    def close(self) -> None:
        """Say that nothing more will come."""
        with self._gate.condition:
            self._closed = True
            self._gate.condition.notify_all()


def run(gate: Gate, reader: Callable[[], None], compute: Callable[[], None], writer: Callable[[], None]) -> None:
    """Run the three parts until all have ended; raise the first error that any of them met."""

    def guarded(part: Callable[[], None]) -> None:
        try:
            part()
        except Stopped:
            pass
        except BaseException as error:
            gate.fail(error)

    parts = {"merge-reader": reader, "merge-writer": writer}
    threads = [threading.Thread(target=guarded, args=(part,), name=name) for name, part in parts.items()]
    for thread in threads:
        thread.start()
    guarded(compute)
    for thread in threads:
        thread.join()
    if gate.error is not None:
        raise gate.error


def share(tasks: Iterable[Task], workers: Sequence[Callable[[Task], None]]) -> None:
    """Give each task to a worker that is free, in order, until none is left; the first worker runs in the calling thread.

    A task that is read, computed and written by one thread stays in its core's cache, and while one thread waits for the disk
    another computes. After an error tasks that run are finished, and no further one is begun.
    """
    queue, lock = iter(tasks), threading.Lock()
    errors: list[BaseException] = []

    def work(do: Callable[[Task], None]) -> None:
        while True:
            try:
                with lock:
                    if errors:
                        return
                    task = next(queue)
            except StopIteration:
                return
            except BaseException as error:
                errors.append(error)
                return
            try:
                do(task)
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,), name=f"merge-{number}") for number, worker in enumerate(workers[1:], 2)]
    for thread in threads:
        thread.start()
    work(workers[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
