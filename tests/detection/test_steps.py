"""Saves of every layout while the daemon looks on: each step becomes one job, of the form that is taken, however slowly it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.detection.bench import Bench
from tests.saves.layouts import LAYOUTS
from tests.saves.saves import TAKEN, play

PAUSE = 8.0
"""Seconds between two files: longer than the settle time, shorter than the patience with what has no last file."""
TWICE = {"VeOmni hf_ckpt": ["checkpoints/global_step_20", "checkpoints/global_step_20/hf_ckpt"]}
"""The pieces are whole and taken before the model in `hf_ckpt` is begun."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_save_that_is_looked_at_after_each_file_becomes_one_job_of_its_step(bench: Bench, tmp_path: Path, name: str) -> None:
    (tmp_path / "scratch").mkdir()
    saved = LAYOUTS[name](tmp_path / "scratch")
    for count in range(len(saved.operations)):
        play(saved, bench.root / "run", count + 1, begin=count)
        bench.pass_time(PAUSE)
    bench.pass_time(120.0)
    final = [path for path, outcome in saved.outcome.items() if outcome == TAKEN]
    assert sorted(str(Path(job.checkpoint.path).relative_to(bench.root / "run")) for job in bench.jobs()) == TWICE.get(name, final)
    assert len({job.checkpoint.run for job in bench.jobs()}) <= 1
    assert {job.checkpoint.step for job in bench.jobs()} <= {10, 20}
