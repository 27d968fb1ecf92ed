"""Artifacts of the pico checkpoint, shared with the tests of the checks, and `ckptd bench` as a person starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.validate.conftest import folders

__all__ = ["folders"]

QUICK = ("--lengths", "4", "--tokens", "2", "--rounds", "2")
"""Options of a measurement that takes a moment."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `ckptd bench` in a process of its own, with a state below the test's folder; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        names = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTD_", "EXPORT_"))}
        names |= {"XDG_STATE_HOME": str(tmp_path / "xdg"), "CKPTD_LIMITS__THREADS": "1", **environment}
        command = [sys.executable, "-m", "daemon", "bench", *map(str, arguments)]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=names)
        started.append(one)
        return one

    yield run
    for one in started:
        one.kill()
        one.communicate()
