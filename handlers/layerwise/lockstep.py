"""Passes through one model that advance together: each waits at the door of a part of the model until the part is opened for all of them.

A pass is the model's own code, called as usual, in a thread of its own. Only one thread runs at any time, the one that `Lockstep` lets in,
so that the arithmetic is that of passes one after the other, and nothing needs a lock. Plain Python: knows neither models nor weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


class Door:
    """The entrance to one part of a model. `number`: its place in the order in which a pass comes to the parts."""

    def __init__(self, number: int) -> None:
        self.number = number

    def serve(self, visits: Sequence[Task]) -> None:
        """Open the part, and let every task that waits here enter, one after the other."""
        for visit in visits:
            visit.enter()


class Task:
    """Work that comes through doors."""

    def __init__(self, work: Callable[[], Any], tag: Any = None, held: Door | None = None) -> None:
        """`tag` is for the caller alone. It is not let in at the door `held`, until that is None."""
        self.tag, self.held = tag, held
        self.door: Door | None = None
        """Where it waits now."""
        self.payload: Any = None
        """What it brought to that door."""
        self.done = False
        self.before: Callable[[Task], None] = lambda _: None
        """Called each time before it runs on."""
        self._work = work
        self._answer: Any = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def result(self) -> Any:
        """Return what the work gave, once it is done; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def begin(self) -> None:
        """Run to the first door."""
        self.before(self)
        self._thread.start()
        self._back.acquire()

    def enter(self, answer: Any = None) -> None:
        """Let it in with an answer (an exception is raised in it); returns when it waits at its next door or is done."""
        self.before(self)
        self.door, self._answer = None, answer
        self._turn.release()
        self._back.acquire()

    def wait_at(self, door: Door, payload: Any) -> Any:
        """Called by the work itself: wait at a door, and give what `enter` brings."""
        self.door, self.payload = door, payload
        self._back.release()
        self._turn.acquire()
        self.payload = None
        answer, self._answer = self._answer, None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _run(self) -> None:
        _here.task = self
        try:
            self._result = self._work()
        except BaseException as error:  # it belongs to whoever asks for the result
            self._error = error
        self.done = True
        self._back.release()


class _Here(threading.local):
    task: Task | None = None


_here = _Here()


def task_here() -> Task:
    """Return the task in whose thread this is called. Raises RuntimeError outside of tasks."""
    if _here.task is None:
        raise RuntimeError("a model that is read layer by layer was run outside of its lockstep")
    return _here.task


class Lockstep:
    """The tasks that are on their way, and the order in which doors are opened."""

    def __init__(self, before: Callable[[Task], None]) -> None:
        """`before` is called each time before a task runs on."""
        self._before = before
        self._tasks: list[Task] = []
        self._last = -1
        self.sweeps = 0
        """Times that the parts of the model were gone through from the first on."""

    def add(self, task: Task) -> Task:
        """Start a task; it runs to its first door."""
        task.before = self._before
        task.begin()
        self._tasks.append(task)
        return task

    def finish(self, tasks: Sequence[Task]) -> None:
        """Open doors until all of `tasks` are done. Raises RuntimeError where one of them is held."""
        while not all(task.done for task in tasks):
            if not self.serve():
                raise RuntimeError("a task is held at a door, and nobody lets it go")

    def sweep(self) -> bool:
        """Open the doors to the end of the model; False where no task waits at a door that may be opened."""
        before = self.sweeps
        while self.serve():
            if self.sweeps > before and self._next() <= self._last:
                return True
        return False

    def serve(self) -> bool:
        """Open one door, the nearest at which tasks wait behind the one opened last; False where there is none."""
        waiting = self._waiting()
        if not waiting:
            return False
        number = self._next()
        if number <= self._last:
            self.sweeps += 1
        self._last = number
        door = next(task.door for task in waiting if task.door is not None and task.door.number == number)
        visits = [task for task in waiting if task.door is door]
        try:
            door.serve(visits)
        except BaseException as error:
            for task in visits:
                if task.door is door:
                    task.enter(error)
        self._tasks = [task for task in self._tasks if not task.done]
        return True

    def _waiting(self) -> list[Task]:
        return [task for task in self._tasks if task.door is not None and task.door is not task.held]

    def _next(self) -> int:
        """Return the number of the door to open next: the first behind the last one, else the first of all."""
        numbers = {task.door.number for task in self._waiting() if task.door is not None}
        behind = {number for number in numbers if number > self._last}
        return min(behind or numbers, default=-1)
