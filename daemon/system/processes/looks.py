"""Questions to file systems that may not answer, for a thread that must go on whatever they do.

Each is put in a thread of its own, never twice beside each other under one key. Its answer is taken when it is asked for again; only the
first time is it waited for, for a moment, since nearly every file system answers at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

FIRST_SECONDS = 0.5
"""How long the first question under a key may hold up who asks."""
FRESH_SECONDS = 5.0
"""An answer that nobody has taken for so long is of no use any more."""
SILENT_SECONDS = 5.0
"""A file system that has not answered for so long counts as silent."""


class NotYet(Exception):
    """There is no answer yet. `seconds`: for how long the question has been waiting."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer for {seconds:.1f} s")
        self.seconds = seconds

    @property
    def silent(self) -> bool:
        """Whether that is long enough to be told."""
        return self.seconds >= SILENT_SECONDS


@dataclass
class _Question:
    asked: float = field(default_factory=time.monotonic)
    ended: threading.Event = field(default_factory=threading.Event)
    answered: float = 0.0
    answer: Any = None
    problem: BaseException | None = None


class Looks:
    """The questions that wait for their answers. Used by one thread; `answered` is called from others."""

    def __init__(self, answered: Callable[[], object]) -> None:
        self._answered = answered
        self._questions: dict[str, _Question] = {}

    def ask(self, key: str, question: Callable[[], T]) -> T:
        """The answer to this question, or to the one under its key that was put before. Raises NotYet, and what the question raises."""
        known = self._questions.get(key)
        if known is None or (known.ended.is_set() and time.monotonic() - known.answered > FRESH_SECONDS):
            known = self._questions[key] = self._put(key, question)
            known.ended.wait(FIRST_SECONDS)
        if not known.ended.is_set():
            raise NotYet(time.monotonic() - known.asked)
        del self._questions[key]
        if known.problem is not None:
            raise known.problem
        answer: T = known.answer
        return answer

    def _put(self, key: str, question: Callable[[], Any]) -> _Question:
        mine = _Question()

        def run() -> None:
            try:
                mine.answer = question()
            except BaseException as error:
                mine.problem = error
            mine.answered = time.monotonic()
            late = mine.answered - mine.asked > FIRST_SECONDS
            mine.ended.set()
            if late:
                self._answered()

        threading.Thread(target=run, name=f"look {key}"[:60], daemon=True).start()
        return mine
