"""Asks a file system that may not answer: a dead server's mount, or a stopped one in user space, holds whoever asks it, for any time.

Nothing can take such a call back, so it is made in a thread that may be left behind, and never twice beside each other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_waiting: dict[str, tuple[threading.Thread, float]] = {}
_lock = threading.Lock()


def ask(key: str, question: Callable[[], T], seconds: float) -> T:
    """The answer to `question`, or what it raises. `key`: what is asked; while one question about it is left behind, no other is put.

    Raises TimeoutError when there is no answer within `seconds`.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((question(), None))
        except BaseException as error:
            answers.put((None, error))

    with _lock:
        if silent_for(key) is not None:
            raise TimeoutError(f"{key} has not answered an earlier question yet")
        thread = threading.Thread(target=run, name=f"ask {key}", daemon=True)
        _waiting[key] = (thread, time.monotonic())
        thread.start()
    try:
        answer, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"{key} has not answered for {seconds:g} s") from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]


def silent_for(key: str) -> float | None:
    """Seconds for which a question about `key` has been waiting for its answer; None where none is."""
    thread, since = _waiting.get(key, (None, 0.0))
    if thread is None or not thread.is_alive():
        _waiting.pop(key, None)
        return None
    return time.monotonic() - since
