"""How much CPU time a child gets beside what it could use."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from daemon.running.workers.cpu_meter import CpuMeter
from daemon.system.processes import procfs

Times = dict[int, tuple[float, float, bool]]


def share_after(looks: list[tuple[float, Times]], monkeypatch: pytest.MonkeyPatch, most: float = 8.0) -> tuple[float, float] | None:
    """What the meter says after looks at (clock, thread → seconds run, seconds waited, ready)."""
    meter = CpuMeter(most)
    for clock, times in looks:
        monkeypatch.setattr(procfs, "cpu_times", lambda _pids, times=times: times)
        meter.look([1], clock)
    return None if meter.share is None else (round(meter.share.got, 2), round(meter.share.wanted, 2))


def test_a_child_that_runs_all_the_time_gets_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_after([(at, {7: (at, 0.0, True)}) for at in range(6)], monkeypatch) == (1.0, 1.0)


def test_a_child_that_waits_for_a_processor_wants_more_than_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_after([(at, {7: (0.03 * at, 0.97 * at, True)}) for at in range(6)], monkeypatch) == (0.03, 1.0)


def test_a_child_could_use_no_more_cores_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[float, Times]] = [(at, dict.fromkeys(range(5), (0.02 * at, 0.9 * at, True))) for at in range(6)]
    assert share_after(looks, monkeypatch) == (0.1, 4.6)
    assert share_after(looks, monkeypatch, most=1) == (0.1, 1.0)
    busy: list[tuple[float, Times]] = [(at, dict.fromkeys(range(2), (0.8 * at, 0.2 * at, True))) for at in range(6)]
    assert share_after(busy, monkeypatch, most=1) == (1.6, 1.6), "what it had it could use"


def test_a_child_that_never_came_to_run_wants_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_after([(at, {7: (0.0, 0.0, True)}) for at in range(6)], monkeypatch) == (0.0, 1.0)


def test_a_child_that_waits_for_a_disk_wants_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_after([(at, {7: (0.02 * at, 0.0, False)}) for at in range(6)], monkeypatch) == (0.02, 0.02)


def test_threads_that_come_and_go_do_not_count_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[float, Times]] = [(0, {7: (9.0, 9.0, True)}), (2, {8: (1.0, 0.0, False)}), (4, {8: (2.0, 0.0, False)})]
    assert share_after(looks, monkeypatch) == (0.5, 0.5)


def test_nothing_is_said_too_early_or_where_the_kernel_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert share_after([(0, {7: (0.0, 0.0, True)}), (1, {7: (1.0, 0.0, True)})], monkeypatch) is None
    assert share_after([(at, {}) for at in range(9)], monkeypatch) is None


def kept_waiting(looks: list[tuple[float, Times]], monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds for which others had the CPU, after these looks."""
    meter = CpuMeter()
    for clock, times in looks:
        monkeypatch.setattr(procfs, "cpu_times", lambda _pids, times=times: times)
        meter.look([1], clock)
    return round(meter.kept_waiting, 2)


def test_only_time_in_which_a_child_was_ready_and_hardly_ran_is_no_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_waiting([(at, {7: (0.03 * at, 0.97 * at, True)}) for at in range(11)], monkeypatch) == 9.7
    assert kept_waiting([(at, {7: (0.0, 0.0, True)}) for at in range(11)], monkeypatch) == 10.0
    assert (
        kept_waiting([(at, {7: (0.6 * at, 0.4 * at, True)}) for at in range(11)], monkeypatch) == 0.0
    )  # it shares the CPU with another one
    assert kept_waiting([(at, {7: (0.0, 0.0, False)}) for at in range(11)], monkeypatch) == 0.0  # it hangs
    assert kept_waiting([(at, {7: (1.0 * at, 0.0, True)}) for at in range(11)], monkeypatch) == 0.0  # it spins


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count")
def test_the_kernels_figures_of_a_busy_process_grow() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        end = time.monotonic() + 30
        while time.monotonic() < end and sum(ran + waited for ran, waited, _ in procfs.cpu_times([busy.pid]).values()) < 0.2:
            time.sleep(0.02)
        assert sum(ran + waited for ran, waited, _ in procfs.cpu_times([busy.pid]).values()) >= 0.2
    finally:
        busy.kill()
        busy.wait()
    assert procfs.cpu_times([busy.pid]) == {}
