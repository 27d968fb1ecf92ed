"""A question that another user answers: a child process becomes that user, so that the kernel itself says what it may."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any


def ask_as(user: int, groups: Sequence[int], question: Callable[[], Any]) -> Any:
    """What a child process that is that user answers, a JSON value. `groups`: the first is its own. Only root can ask.

    Raises OSError where it can't be that user, or can't answer.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.setgroups(list(groups))
            os.setgid(groups[0])
            os.setuid(user)
            with os.fdopen(writing, "w", encoding="utf-8") as stream:
                json.dump(question(), stream)
            status = 0
        finally:
            os._exit(status)  # nothing of the parent's is to be flushed or cleaned up twice
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        answer = stream.read()
    _, code = os.waitpid(child, 0)
    if code:
        raise OSError(f"the user with the number {user} could not be tested")
    return json.loads(answer)
