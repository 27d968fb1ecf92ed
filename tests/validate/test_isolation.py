"""One artifact's crash is one artifact's verdict, and no worker outlives its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from daemon.contract.jobs.messages import ChildLimits, Outcome, Verdict
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import AskStats, Encode, Time
from tests.validate import artifacts
from tests.validate.conftest import LIMITS, Run, StartStage, Validate


def _wait_for_worker(run: Run, variant: str) -> psutil.Process:
    """The worker of a variant, once it exists."""
    stage = psutil.Process(run.process.pid)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        assert run.process.poll() is None, "the stage ended first"
        for child in stage.children():
            with contextlib.suppress(psutil.Error):  # it may end while it is looked at
                if child.cmdline() and child.cmdline()[-1].endswith(f"worker-{variant}.json"):
                    return child
        time.sleep(0.005)
    raise AssertionError(f"no worker of {variant} appeared")


def _lives(process: psutil.Process) -> bool:
    """Whether it has not ended; who adopts a zombie, and when it takes it away, is the box's affair."""
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_a_corrupt_graph_and_a_crash_fail_their_own_artifacts_alone(
    validate: Validate, start_stage: StartStage, folders: dict[str, Path], tmp_path: Path
) -> None:  # R4.5
    corrupt = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    graph = (corrupt / "model.onnx").read_bytes()
    (corrupt / "model.onnx").write_bytes(graph[: len(graph) // 2])
    inputs = {"merge": folders["pytorch"], "pytorch": folders["pytorch"], "onnx": corrupt}
    options = {"samples": 2, "new_tokens": 8, "speed_tokens": 8}
    done = validate(folders["pytorch"], None, inputs, **options)
    later = inputs | done.folders | {"onnx-int8": folders["onnx-int8"]}
    run = start_stage("check-onnx-int8", folders["pytorch"], None, later, **options)
    victim = _wait_for_worker(run, "onnx-int8")
    victim.send_signal(signal.SIGSEGV)
    crashed = run.result()

    assert {result.outcome for result in (*done.results.values(), crashed)} == {Outcome.SUCCEEDED}
    (int8,) = crashed.checks
    onnx = done.checks["onnx"]
    assert onnx.verdict is Verdict.FAILED
    assert "it could not be run" in onnx.reasons[0] and "Protobuf" in onnx.reasons[0]
    assert int8.verdict is Verdict.FAILED
    assert "SIGSEGV" in int8.reasons[0]
    assert onnx.remedy and int8.remedy
    assert done.checks["pytorch"].verdict is Verdict.PASSED
    assert done.checks["pytorch"].figures["agreement"] == 1.0
    assert done.figures["reference"]["method"] == "full fine-tune"
    assert list(done.figures["speed"]) == ["pytorch"]  # what could not be run is not timed
    assert not _lives(victim)


def test_killing_the_stage_leaves_no_worker_behind(start_stage: StartStage, folders: dict[str, Path]) -> None:
    run = start_stage("reference", folders["pytorch"], None, {"merge": folders["pytorch"]})
    worker = _wait_for_worker(run, "live")
    time.sleep(0.5)  # long enough for the worker to bind itself
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 30
    while _lives(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _lives(worker)


def _onnx_worker(folder: Path, scratch: Path) -> EngineWorker:
    return EngineWorker("onnx", EngineSpec(engine="onnx", folder=str(folder)), scratch, LIMITS)


def test_a_killed_worker_says_which_signal_and_what_to_do(folders: dict[str, Path], tmp_path: Path) -> None:
    with _onnx_worker(folders["onnx"], tmp_path) as worker:
        worker.load()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="SIGKILL") as caught:
            worker.ask(AskStats())
    assert caught.value.transient and "memory" in caught.value.remedy


def test_a_worker_that_hangs_is_ended_when_its_time_is_up(folders: dict[str, Path], tmp_path: Path) -> None:
    with _onnx_worker(folders["onnx"], tmp_path) as worker:
        worker.load()
        os.kill(worker.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(WorkerFailed, match="no answer to `stats` within 1 s"):
            worker.ask(AskStats(), limit=1.0)
        worker.close()
        assert time.monotonic() - started < 5
        assert not psutil.pid_exists(worker.pid)


def test_an_error_in_a_command_leaves_the_worker_usable(folders: dict[str, Path], tmp_path: Path) -> None:
    with _onnx_worker(folders["onnx"], tmp_path) as worker:
        worker.load()
        with pytest.raises(WorkerFailed, match="indices element out of data bounds"):
            worker.ask(Time(rows=[[100_000]], tokens=1))
        assert worker.ask(Time(rows=[[5, 6]], tokens=1)).decode_seconds > 0


def test_peak_memory_is_the_workers_own_and_not_its_parents(folders: dict[str, Path], tmp_path: Path) -> None:
    script = (
        "import sys, numpy; from pathlib import Path; from daemon.contract.jobs.messages import ChildLimits;"
        " from handlers.validate.workers.client import EngineWorker;"
        "from handlers.validate.workers.protocol import AskStats;"
        "from handlers.validate.engines.registry import EngineSpec; ballast = numpy.ones(60_000_000);"
        "worker = EngineWorker('onnx', EngineSpec(engine='onnx', folder=sys.argv[1]), Path(sys.argv[2]), ChildLimits(idle=False, nice=0));"
        "worker.load(); print(worker.ask(AskStats()).peak_rss_bytes); worker.close()"
    )
    done = subprocess.run([sys.executable, "-c", script, folders["onnx"], tmp_path], capture_output=True, text=True, check=True)
    assert 20e6 < int(done.stdout) < 300e6


def test_the_onnx_worker_imports_neither_torch_nor_transformers(folders: dict[str, Path], tmp_path: Path) -> None:
    with _onnx_worker(folders["onnx"], tmp_path) as worker:
        worker.load()
        worker.ask(Encode(texts=["a"]))
        assert set(worker.ask(AskStats()).versions) == {"python", "numpy", "onnxruntime", "tokenizers"}


def test_a_worker_with_another_parent_ends_itself(folders: dict[str, Path], tmp_path: Path) -> None:
    with _onnx_worker(folders["onnx"], tmp_path) as worker:
        worker.load()
    spec = (tmp_path / "worker-onnx.json").read_text().replace(f'"parent_pid": {os.getpid()}', '"parent_pid": 1')
    assert ChildLimits().parent_pid == 0 and '"parent_pid": 1' in spec
    (tmp_path / "orphan.json").write_text(spec)
    command = [sys.executable, "-m", "handlers.validate.workers.worker", str(tmp_path / "orphan.json")]
    assert subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode == 75
