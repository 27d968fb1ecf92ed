"""What a machine starts for an attempt: the work in the worker's own Python, or the program of another one."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from daemon.contract.jobs.messages import Outcome
from daemon.running.attempts.executor import Order
from tests.cluster.bench import Bench, outcome, result_of, runs, until
from tests.cluster.failures import fake_of


def processes(bench: Bench, token: str) -> tuple[psutil.Process, psutil.Process]:
    """The worker, and the process that does the work."""
    (run,) = fake_of(bench).jobs[token].runs
    worker = psutil.Process(run.pid)
    (child,) = worker.children()
    return worker, child


@pytest.mark.parametrize("other", [False, True], ids=["the-workers", "another"])
def test_the_work_is_done_by_the_python_that_is_asked_for(bench: Bench, tmp_path: Path, other: bool) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    if other:
        bench.executor.command = (str(python), "-m", "tests.cluster.child")
    attempt = bench.start(held=True)
    until(lambda: runs(attempt))
    worker, child = processes(bench, attempt.orders.token)
    assert (child.cmdline() == worker.cmdline()) is not other, "a program of its own only where it must be"
    assert (child.name() == "ckptd:merge") is not other
    assert os.getsid(child.pid) == child.pid != os.getsid(worker.pid)
    assert child.environ()["PYTHONUTF8"] == "1" and os.readlink(f"/proc/{child.pid}/fd/0") == os.devnull
    bench.release(attempt)
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)


def test_a_python_that_is_gone_is_said_in_the_log(bench: Bench, tmp_path: Path) -> None:
    bench.executor.command = (str(tmp_path / "nowhere"), "-m", "tests.cluster.child")
    attempt = bench.start()
    assert result_of(attempt).outcome is Outcome.RETRYABLE
    assert f"{tmp_path / 'nowhere'} can't be run: No such file or directory" in (attempt.folder / "log.txt").read_text()


def test_a_stage_of_a_toolchain_is_run_by_that_toolchains_python(bench: Bench, tmp_path: Path) -> None:
    bench.executor.command = ()
    fake_of(bench).held = True
    order = bench.order()
    chain = tmp_path / "cache" / "toolchains" / "some"
    chain.mkdir(parents=True)
    context = order.context.model_copy(update={"toolchain": "some", "cache": str(tmp_path / "cache")})
    attempt = bench.executor.start(Order(context, order.folder, order.bounds))
    assert attempt.orders.command[0] == str(chain / "bin" / "python")  # type: ignore[attr-defined]


def threads_of(bench: Bench, **terms: Any) -> int:
    """What the stage of an attempt with these terms may use."""
    bench.executor.terms = dataclasses.replace(bench.executor.terms, **terms)
    attempt = bench.start()
    assert outcome(attempt) == (Outcome.SUCCEEDED, None)
    return int(json.loads((attempt.folder / "job-there.json").read_bytes())["limits"]["threads"])


def test_a_stage_has_as_many_threads_as_the_allocation_has_cores_and_the_machine_has_for_it(bench: Bench) -> None:
    assert threads_of(bench, prefix=("env", "SLURM_CPUS_PER_TASK=1")) == 1
    assert threads_of(bench, prefix=("env", "SLURM_CPUS_PER_TASK=100000")) == len(os.sched_getaffinity(0))


@pytest.mark.slow
def test_a_stage_by_slurm_has_the_threads_of_its_allocation(slurm_bench: Bench) -> None:
    assert threads_of(slurm_bench, cpus=1) == 1
    assert threads_of(slurm_bench, cpus=8) == min(8, len(os.sched_getaffinity(0)))
