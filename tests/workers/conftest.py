"""Starts children that misbehave, and looks afterwards whether anything of them is left."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import StageContext
from daemon.running.attempts.executor import Bounds, Order
from daemon.running.workers import cgroup, containment, warm
from daemon.running.workers.worker import Worker, environment_of
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
def few_objects() -> None:
    """What the libraries have made is left out of garbage collections, each of which would take most of a second."""
    gc.freeze()


@pytest.fixture(params=["started", pytest.param("forked", marks=pytest.mark.slow)])
def way(request: pytest.FixtureRequest, adopting: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How children come to be: as programs, or forked from a process that is ready for it."""
    monkeypatch.setattr(warm, "HANDLERS", (sys.executable, str(SCRIPT)))
    yield request.param
    warm.end_all()


def make_ready(context: StageContext, environment: dict[str, str]) -> None:
    """Wait until a child with these limits can be forked."""
    kind = warm.kind_of("torch", context.limits, environment)
    warm.get_ready(kind, 60, 0)
    end = time.monotonic() + 60
    while not warm._all[0].ready:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def start(way: str, few_objects: None, tmp_path: Path) -> Iterator[Start]:
    """Starts a child; in the end nothing may be left of any: no process, no zombie, no open file, no file but its own."""
    (tmp_path / "attempt").mkdir()
    (tmp_path / "staging").mkdir()
    gc.collect()
    before, made = sorted(os.listdir("/proc/self/fd")), []

    def begin(case: str, *, limits: dict[str, Any] | None = None, stage: str = "merge", entry: str = "", **bounds: Any) -> Worker:
        command = HANDLERS if case == "real" else (sys.executable, str(SCRIPT), case)
        context = make_context(tmp_path, stage, entry, **(limits or {}))
        if way == "forked":
            command = ()
            if case != "real":
                context = context.model_copy(update={"entry": case})
            if not warm._all:
                make_ready(context, environment_of(BOUNDS))
        bound = Bounds(**{**vars(BOUNDS), "warm": 60 * (way == "forked"), **bounds})
        made.append(Worker(Order(context, tmp_path / "attempt", bound), command))
        assert isinstance(made[-1].process, warm.Forked) == (way == "forked")
        return made[-1]

    yield begin
    for worker in made:
        if not worker.ended:
            worker.hurry()
            wait(worker)
    warm.end_all()
    assert leftovers(tmp_path / "attempt") == []
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert {path.name for path in (tmp_path / "attempt").iterdir()} <= {"job.json", "log.txt", "result.json", "tmp"}
    assert containment._open == {}
