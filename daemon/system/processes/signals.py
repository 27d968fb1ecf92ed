"""Signals for a program with threads: what a signal asks for is done by a thread of its own.

Python calls a handler in the main thread, between any two steps of what that does. Where the main thread holds the lock of a
`threading.Event` at that moment, as each `wait` and `set` does for some microseconds, a handler that sets the event waits for its own
thread, and the program is never asked again. So the handlers here do nothing; the C part of Python writes the signal's number into a pipe.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable

_acts: dict[int, Callable[[], object]] = {}
"""Signal → what it asks for."""


def on_signals(numbers: Iterable[int], act: Callable[[], object]) -> None:
    """Have a thread call `act`, which raises nothing, for each signal of these numbers from now on. Called by the main thread."""
    if not _acts:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=_serve, args=(reading,), name="signals", daemon=True).start()
        os.register_at_fork(after_in_child=_acts.clear)  # the thread is not there
    for number in numbers:
        _acts[number] = act
        signal.signal(number, _leave_to_the_thread)


def _leave_to_the_thread(*_: object) -> None:
    """Only a signal that has a handler is written into the pipe."""


def _serve(pipe: int) -> None:
    while True:
        for number in os.read(pipe, 64):
            if (act := _acts.get(number)) is not None:
                act()
