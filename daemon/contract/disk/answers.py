"""Asks a file system that may not answer: a dead server's mount, or a stopped one in user space, holds whoever asks it, for any time.

Nothing can take such a call back, so it is made in a thread that may be left behind, and never twice beside each other.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SECONDS = 5.0
"""What a file system may take to answer a plain question."""
_asked: dict[str, float] = {}
"""What is being asked → since when, of the monotonic clock."""
_answered = threading.Condition()


def ask(key: str, question: Callable[[], T], seconds: float = SECONDS) -> T:
    """The answer to `question`, or what it raises. `key`: what is asked; while one question about it waits for its answer, no other is put.

    Raises TimeoutError when there is no answer within `seconds`, at once where an earlier question has waited for so long already.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        answer, problem = None, None
        try:
            answer = question()
        except BaseException as error:
            problem = error
        with _answered:
            del _asked[key]
            _answered.notify_all()
        answers.put((answer, problem))

    end = time.monotonic() + seconds
    with _answered:
        if not _answered.wait_for(lambda: key not in _asked, seconds - (silent_for(key) or 0.0)):
            raise TimeoutError(f"{key} has not answered an earlier question yet")
        _asked[key] = time.monotonic()
        try:
            threading.Thread(target=run, name=f"ask {key}", daemon=True).start()
        except BaseException:  # no thread can be had now: nobody asks, and the next one may
            del _asked[key]
            raise
    try:
        answer, problem = answers.get(timeout=max(0.0, end - time.monotonic()))
    except queue.Empty:
        raise TimeoutError(f"{key} has not answered for {seconds:g} s") from None
    if problem is not None:
        raise problem
    return answer  # type: ignore[return-value]


def silent_for(key: str) -> float | None:
    """Seconds for which a question about `key` has been waiting for its answer; None where none is."""
    since = _asked.get(key)
    return None if since is None else time.monotonic() - since


def real_path(path: Path) -> Path:
    """Where the links in a path lead; the path itself where its file system does not answer."""
    try:
        return ask(str(path), lambda: Path(os.path.realpath(path)))
    except TimeoutError:
        return path
