"""Sharing the pieces of a merge among a few threads.

Called by the streaming merge and its check. A piece is read, computed and written by one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Task = TypeVar("Task")


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
