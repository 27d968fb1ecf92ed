"""Loops of one's own that no page names: nothing is taken early, nothing whole is silent, and a run's steps come in their order."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from safetensors.numpy import save

from tests.detection.bench import Bench, open_bench
from tests.saves.saves import CONFIG, MODEL, arrays
from tests.saves.unknown import Loop, draw

PAUSE = 5.0
"""Seconds between two files: longer than the settle time, shorter than the patience with what has no last file."""
QUICK, MANY = 20, 600


def play(loop: Loop, bench: Bench, run: Path) -> list[str]:
    """Let a loop run while the tracker looks on, and give what is wrong of what became of it."""
    wrong = list[str]()
    taken = set[str]()
    for count, operation in enumerate(loop.operations, 1):
        path = run / operation.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if operation.renamed:
            (run / operation.renamed).rename(path)
        else:
            path.write_bytes(operation.content)
        bench.pass_time(PAUSE)
        for job in bench.jobs():
            place = Path(job.checkpoint.path).relative_to(run).as_posix()
            if place not in taken and count < loop.whole_after.get(place, len(loop.operations) + 1):
                wrong.append(f"early: {place}")
            taken.add(place)
    bench.pass_time(120.0)
    jobs = {Path(job.checkpoint.path).relative_to(run).as_posix(): job for job in bench.jobs()}
    said = {path.relative_to(run).as_posix() for path in bench.tracker.listing.passed_over}
    for place in loop.whole_after:
        if place not in jobs and place not in said and not bench.journal.sightings.jobs_at(str(run / place)):
            wrong.append(f"silent: {place}")
    wrong += [f"step {jobs[place].checkpoint.step}: {place}" for place, step in loop.steps.items()
              if place in jobs and jobs[place].checkpoint.step != step]  # fmt: skip
    if loop.steps and len({jobs[place].checkpoint.run for place in loop.steps if place in jobs}) > 1:
        wrong.append("its steps are of several runs")
    if loop.ending in jobs and jobs[loop.ending].checkpoint.step < max(loop.steps.values(), default=0):
        wrong.append(f"the end is step {jobs[loop.ending].checkpoint.step}: {loop.ending}")
    return wrong


def sweep(home: Path, seeds: range) -> dict[str, list[str]]:
    """What was drawn → what is wrong, of all loops of which something is."""
    failures = {}
    for seed in seeds:
        loop, place = draw(seed), home / str(seed)
        place.mkdir()
        with open_bench(place) as bench:
            if wrong := play(loop, bench, bench.root / "run"):
                failures[f"{seed}: {loop.said}"] = wrong
    return failures


def test_twenty_loops_of_ones_own_are_taken_whole_and_in_order(tmp_path: Path) -> None:
    assert sweep(tmp_path, range(QUICK)) == {}


@pytest.mark.parametrize("name", ["tmp_step_10", "ckpt_00010.tmp", "model-10.partial", "step_10-tmp", "tmp-step_10"])
def test_a_step_that_was_never_renamed_is_listed_when_that_is_clear(tmp_path: Path, name: str) -> None:
    with open_bench(tmp_path) as bench:
        left = bench.root / "run" / name
        left.mkdir(parents=True)
        (left / "adapter_model.safetensors").write_bytes(b"")
        bench.pass_time(60.0)
        assert bench.jobs() == [] and bench.tracker.listing.passed_over == {}, "it may be renamed yet"
        os.utime(left, (time.time() - 1000,) * 2)
        bench.pass_time(60.0)
        assert list(bench.tracker.listing.passed_over) == [left] and bench.tracker.listing.incomplete == {}


@pytest.mark.parametrize("name", ["model-7", "weights_7", "lora-16", "7"])
def test_a_whole_model_under_a_name_that_a_download_may_have_is_listed_and_not_taken(tmp_path: Path, name: str) -> None:
    with open_bench(tmp_path) as bench:
        model = bench.root / "models" / name
        model.mkdir(parents=True)
        for file, content in (("config.json", CONFIG.encode()), ("model.safetensors", save(arrays(MODEL)))):
            (model / file).write_bytes(content)
        bench.pass_time(60.0)
        assert bench.jobs() == [] and list(bench.tracker.listing.passed_over) == [model]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_six_hundred_loops_of_ones_own_are_taken_whole_and_in_order(tmp_path: Path) -> None:
    assert sweep(tmp_path, range(QUICK, QUICK + MANY)) == {}
