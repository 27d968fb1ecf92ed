"""What other programs take of a model's time is not the model's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from handlers.validate.workers.stopwatch import Stopwatch


@pytest.fixture
def shared_core() -> Iterator[None]:
    """Have another process busy on the core that this thread runs on."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    rival = os.fork()
    if rival == 0:
        while True:
            pass
    yield
    os.kill(rival, 9)
    os.waitpid(rival, 0)
    os.sched_setaffinity(0, cores)


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/schedstat"), reason="the kernel does not count it")
def test_time_without_a_core_is_not_counted(shared_core: None) -> None:
    time.sleep(0.05)
    began, used, watch = time.perf_counter(), time.thread_time(), Stopwatch()
    while time.perf_counter() - began < 0.3:
        pass
    seconds, used, whole = watch.lap(), time.thread_time() - used, time.perf_counter() - began
    assert used < 0.9 * whole, "the other process got nothing, so that this says nothing"
    assert abs(seconds - used) < 0.1 * whole


def test_what_a_model_waits_for_itself_is_counted() -> None:
    watch = Stopwatch()
    time.sleep(0.1)
    assert watch.lap() > 0.09


def test_each_lap_counts_for_itself() -> None:
    watch = Stopwatch()
    time.sleep(0.1)
    assert watch.lap() > watch.lap()
