"""Lets the world move while the detection looks: a call before every look at the file system, and a way to die there.

The functions through which Python reaches files are wrapped while the block lasts, so that the code under test runs as it
is, and trainers write, delete and rename between any two of its steps.
"""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


class Killed(BaseException):
    """The daemon dies in the middle of what it does."""


@contextmanager
def before_every_step(below: str, step: Callable[[str], None]) -> Iterator[None]:
    """Call `step(path)` ahead of each open, listing and stat of a path below `below`, but never from inside itself."""
    inside = False

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(path: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal inside
            if not inside and not isinstance(path, int) and os.fspath(path).startswith(below):
                inside = True
                try:
                    step(os.fspath(path))
                finally:
                    inside = False
            return original(path, *arguments, **options)

        return function

    with (
        mock.patch.object(os, "scandir", wrapped(os.scandir)),
        mock.patch.object(os, "stat", wrapped(os.stat)),
        mock.patch.object(builtins, "open", wrapped(builtins.open)),
        mock.patch.object(io, "open", wrapped(io.open)),
    ):
        yield
