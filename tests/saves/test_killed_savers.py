"""Real savers that are killed while a real tracker looks on: nothing is taken early, nothing whole is missed, every directory has a line.

Whether a checkpoint is whole, its own library says: torch.distributed.checkpoint's reader, torch.load, safetensors.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.detection.bench import Bench, open_bench
from tests.saves.savers import KINDS, SHAPES

SETTLE_SECONDS = 0.05
LOOKS_SECONDS = 0.004
FIRST_SECONDS, MOST_SECONDS = 30.0, 0.4
"""How long a trainer may take until it has written something, and the longest time from there until it is killed."""
CASES = [(kind, ranks) for kind in KINDS for ranks in ((1, 2) if kind in ("torchtitan", "VeOmni") else (1,))]


@pytest.fixture(scope="module")
def savers() -> Iterator[Callable[..., int]]:
    """Starts a trainer; gives the id of its group of processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.saves.savers"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        assert "ready" in server.stdout.readline()

        def start(**trainer: Any) -> int:
            server.stdin.write(json.dumps(trainer) + "\n")
            server.stdin.flush()
            return int(json.loads(server.stdout.readline())["group"])

        yield start
        server.stdin.close()


def saved_by_torch(folder: Path, prefix: str) -> set[float]:
    """The values in a state of torch.distributed.checkpoint. Raises whatever its reader raises."""
    import torch
    import torch.distributed.checkpoint as checkpoint

    held = {f"{prefix}{name}": torch.zeros(shape) for name, shape in SHAPES.items()}
    checkpoint.load(held, checkpoint_id=folder, no_dist=True)
    return {float(value) for tensor in held.values() for value in (tensor.min(), tensor.max())}


def values_in(folder: Path) -> set[float]:
    """All values of the weights of a checkpoint, read by the library that wrote them. Raises what that raises where it is not whole."""
    import torch
    from safetensors.torch import load_file

    if modules := sorted(folder.glob("*.ckpt"), key=lambda file: int(file.stem.rpartition("=")[2])):
        states = [torch.load(file)["state_dict"] for file in modules]
        return {float(value) for tensor in states[-1].values() for value in (tensor.min(), tensor.max())}
    if (folder / "model.safetensors").is_file():
        weight = load_file(folder / "model.safetensors")["weight"]
        return {float(weight.min()), float(weight.max())}
    nested = any(name.name == "extra_state" for name in folder.iterdir()) or folder.parent.name == "checkpoints"
    return saved_by_torch(folder, "model." if nested else "")


def step_of(folder: Path) -> float:
    """The step in a name; of a directory of Lightning's the newest file's."""
    modules = [int(file.stem.rpartition("=")[2]) for file in folder.glob("*.ckpt")]
    return float(max(modules) if modules else int(folder.name.replace("-", "_").rpartition("_")[2]))


def is_whole(folder: Path) -> bool:
    """Whether the library that wrote it reads all of it."""
    return (folder.name[:5] != "step_" or _has_ended(folder)) and _values(folder) == {step_of(folder)}


def _has_ended(folder: Path) -> bool:
    """Whether accelerate's last file is whole."""
    import torch

    try:
        return bool(torch.load(folder / "random_states_0.pkl", weights_only=False))
    except Exception:
        return False


def folders_with_weights(run: Path) -> list[Path]:
    """Every directory of a run in which weights lie, or a part of them."""
    suffixes = (".distcp", ".ckpt", ".safetensors")
    return sorted({file.parent for file in run.rglob("*") if file.suffix in suffixes and file.is_file()})


def watch(bench: Bench, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
    """Look as the watcher does, by the real clock; whether `until` came true before the time was up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if until():
            return True
        bench.at = time.monotonic()
        bench.tracker.scan(bench.root, bench.at)
        bench.tracker.look_at_due(bench.at)
        time.sleep(LOOKS_SECONDS)
    return False


def kill_one(bench: Bench, start: Callable[..., int], kind: str, ranks: int, run: Path, moment: float) -> Counter[str]:
    """Start a trainer, kill it `moment` seconds after its first weights, and count what is wrong, and what became of its directories."""
    counts, scratch = Counter[str](), run.with_name(f"{run.name}.scratch")
    scratch = bench.root.parent / scratch.name
    run.mkdir()
    scratch.mkdir()
    (run / "config.json").write_text('{"model_type": "qwen3"}')
    group = start(kind=kind, run=str(run), scratch=str(scratch), ranks=ranks)
    try:
        assert watch(bench, FIRST_SECONDS, lambda: bool(folders_with_weights(run))), "it has written nothing"
        watch(bench, moment)
    finally:
        os.killpg(group, signal.SIGKILL)
    bench.at = time.monotonic()
    bench.pass_time(120.0)
    jobs = {Path(job.checkpoint.path): job for job in bench.jobs() if Path(job.checkpoint.path).is_relative_to(run)}
    for path, job in jobs.items():
        pinned = job.pin if kind != "VeOmni" else _as_saved(job.pin, scratch)
        early = not pinned.is_dir() or _values(pinned) != {float(job.checkpoint.step)}
        counts["early" if early else "taken"] += 1
        assert not early, (path, job.checkpoint.step, sorted(pinned.iterdir()) if pinned.is_dir() else None)
    said = {**bench.tracker.listing.passed_over, **bench.tracker.listing.incomplete}
    for folder in folders_with_weights(run):
        if bench.journal.sightings.jobs_at(str(folder)):  # of an earlier run, perhaps, whose step was the same
            continue
        counts["missed" if is_whole(folder) else "silent" if folder not in said else "unfinished"] += 1
    shutil.rmtree(run)
    return counts


def _as_saved(pin: Path, scratch: Path) -> Path:
    """A pin under a name that tells the form in which VeOmni saves."""
    place = scratch / "checkpoints" / "pinned"
    shutil.rmtree(place, ignore_errors=True)
    if pin.is_dir():
        shutil.copytree(pin, place)
    return place


def _values(folder: Path) -> set[float]:
    """The same, and nothing where it is not whole."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        return values_in(folder)
    except (Exception, CheckpointException):  # torch's own is not of Python's kind
        return set()


def kill_many(home: Path, start: Callable[..., int], kind: str, ranks: int, times: int) -> Counter[str]:
    """Kill so many trainers at moments that a seed gives."""
    source, counts = random.Random(f"{kind} {ranks}"), Counter[str]()
    with open_bench(home, SETTLE_SECONDS) as bench:
        for number in range(times):
            counts += kill_one(bench, start, kind, ranks, bench.root / f"run-{number}", source.uniform(0.0, MOST_SECONDS))
    return counts


@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_a_saver_that_is_killed_leaves_nothing_that_is_taken_early_missed_or_silent(
    savers: Callable[..., int], tmp_path: Path, kind: str, ranks: int
) -> None:
    counts = kill_many(tmp_path, savers, kind, ranks, 2)
    assert counts["early"] + counts["missed"] + counts["silent"] == 0, counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "ranks"), CASES)
def test_savers_that_are_killed_thirty_times_leave_nothing_that_is_taken_early_missed_or_silent(
    savers: Callable[..., int], tmp_path: Path, kind: str, ranks: int
) -> None:
    counts = kill_many(tmp_path, savers, kind, ranks, 30)
    assert counts["early"] + counts["missed"] + counts["silent"] == 0, counts
    assert counts["taken"] >= 5 and (counts["unfinished"] >= 1 or kind == "Lightning"), counts
