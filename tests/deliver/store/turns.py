"""Deliveries and removals at one store that take turns, each between any two of its calls, in an order that a number decides; any of
them may be killed there."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """Ends an actor where it is: nothing of it runs any more."""


class Turns:
    """The order of calls. Actors run in threads of their own, one at a time."""

    def __init__(self, seed: int, kills: float = 0.0) -> None:
        self._random, self._kills = random.Random(seed), kills
        self._actors: list[threading.Thread] = []
        self._go: dict[threading.Thread, threading.Semaphore] = {}
        self._back = threading.Semaphore(0)
        self.problems: list[BaseException] = []
        self.killed = 0

    def add(self, act: Callable[[], object]) -> None:
        """Another actor."""

        def run() -> None:
            try:
                self.point()
                act()
            except Killed:
                self.killed += 1
            except BaseException as problem:
                self.problems.append(problem)
            finally:
                self._actors.remove(thread)
                self._back.release()

        thread = threading.Thread(target=run, daemon=True)
        self._go[thread] = threading.Semaphore(0)
        self._actors.append(thread)
        thread.start()
        self._back.acquire()

    def point(self) -> None:
        """Let another act first."""
        me = threading.current_thread()
        if me not in self._go:
            return
        self._back.release()
        self._go[me].acquire()
        if self._random.random() < self._kills:
            raise Killed

    def run(self, after_each: Callable[[], None]) -> None:
        """Let all act to their ends."""
        while self._actors:
            self._go[self._random.choice(self._actors)].release()
            self._back.acquire()
            after_each()


class InTurns:
    """A store whose calls wait for their turn. What is read of a mark, and what is removed by that, is one turn: no more than one request
    is on its way."""

    def __init__(self, store: Any, turns: Turns) -> None:
        self._store, self._turns = store, turns
        self._looked = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        def call(*words: Any, **more: Any) -> Any:
            if not (self._looked and name in ("delete", "clear")):
                self._turns.point()
            self._looked = name == "read" and "/.begun/" in words[0]
            return list(value(*words)) if name == "stream" else value(*words, **more)

        return call
