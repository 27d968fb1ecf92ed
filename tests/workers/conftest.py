"""Starts children that misbehave, and looks afterwards whether anything of them is left."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.running.executor import Bounds, Order
from daemon.running.workers import cgroup, containment
from daemon.running.workers.worker import Worker
from daemon.toolchains.registry import HANDLERS
from tests.workers.helpers import BOUNDS, HAS_GROUPS, SCRIPT, UNIFIED, Start, leftovers, make_context, wait


@pytest.fixture
def adopting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process adopts orphans, as the daemon does, and no control group is used."""
    monkeypatch.setattr(containment, "_adopting", False)
    monkeypatch.setattr(containment, "_root", None)
    monkeypatch.setattr(cgroup, "delegated", lambda: None)
    containment.adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


@pytest.fixture
def grouped(adopting: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """As `adopting`, with a real control group in which attempts get theirs."""
    if not HAS_GROUPS:
        pytest.skip("needs a writable cgroup2 file system")
    assert UNIFIED is not None
    root = UNIFIED / f"ckptd-test-{os.getpid()}"
    root.mkdir()
    monkeypatch.setattr(containment, "_root", root)
    yield root
    left = [path.name for path in root.iterdir() if path.is_dir()]
    root.rmdir()
    assert left == []


@pytest.fixture(scope="module")
def few_objects() -> Iterator[None]:
    """What the libraries have made is left out of garbage collections, each of which would take most of a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def start(adopting: None, few_objects: None, tmp_path: Path) -> Iterator[Start]:
    """Starts a child; in the end nothing may be left of any: no process, no zombie, no open file, no file but its own."""
    (tmp_path / "attempt").mkdir()
    (tmp_path / "staging").mkdir()
    gc.collect()
    before, made = sorted(os.listdir("/proc/self/fd")), []

    def begin(case: str, *, limits: dict[str, Any] | None = None, stage: str = "merge", entry: str = "", **bounds: Any) -> Worker:
        command = HANDLERS if case == "real" else (sys.executable, str(SCRIPT), case)
        context = make_context(tmp_path, stage, entry, **(limits or {}))
        made.append(Worker(Order(context, tmp_path / "attempt", Bounds(**{**vars(BOUNDS), **bounds})), command))
        return made[-1]

    yield begin
    for worker in made:
        if not worker.ended:
            worker.hurry()
            wait(worker)
    assert leftovers(tmp_path / "attempt") == []
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert {path.name for path in (tmp_path / "attempt").iterdir()} <= {"job.json", "log.txt", "result.json", "tmp"}
    assert containment._open == {}
