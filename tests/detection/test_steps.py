"""Saves of every layout while the daemon looks on: each step becomes one job, of the form that is taken, however slowly it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.detection.bench import Bench
from tests.saves.layouts import LAYOUTS as TRAINERS
from tests.saves.libraries import LAYOUTS as LIBRARIES
from tests.saves.saves import TAKEN, Save, play

PAUSE = 8.0
"""Seconds between two files: longer than the settle time, shorter than the patience with what has no last file."""
LAYOUTS = TRAINERS | LIBRARIES


def final_forms(saved: Save) -> list[str]:
    """The checkpoints that are taken, each step in its last form."""
    taken = [path for path, outcome in saved.outcome.items() if outcome == TAKEN]
    return sorted(path for path in taken if not any(other.startswith(f"{path}/") for other in taken))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_save_that_is_looked_at_after_each_file_becomes_one_job_of_its_step(bench: Bench, tmp_path: Path, name: str) -> None:
    (tmp_path / "scratch").mkdir()
    saved = LAYOUTS[name](tmp_path / "scratch")
    for count in range(len(saved.operations)):
        play(saved, bench.root / "run", count + 1, begin=count)
        bench.pass_time(PAUSE)
    bench.pass_time(120.0)
    assert sorted(str(Path(job.checkpoint.path).relative_to(bench.root / "run")) for job in bench.jobs()) == final_forms(saved)
    assert len({job.checkpoint.run for job in bench.jobs()}) <= 1
    assert {job.checkpoint.step for job in bench.jobs()} <= {10, 20}
    assert len({job.target for job in bench.jobs()}) == len(bench.jobs())


@pytest.mark.parametrize("state", ["succeeded", "partial", "failed", "pending"])
def test_of_pieces_and_their_model_beside_them_one_is_exported(bench: Bench, tmp_path: Path, state: str) -> None:
    (tmp_path / "scratch").mkdir()
    saved, pieces = TRAINERS["VeOmni hf_ckpt"](tmp_path / "scratch"), "checkpoints/global_step_20"
    begun = saved.whole_after[pieces]
    play(saved, bench.root / "run", begun)
    bench.pass_time(PAUSE)
    (before,) = bench.jobs()
    if state != "pending":
        bench.journal.jobs.start(before.id, None)
        bench.journal.jobs.finish(before.id, state, None)
    play(saved, bench.root / "run", len(saved.operations), begin=begun)
    bench.pass_time(120.0)
    after = bench.jobs()
    if state in ("succeeded", "partial"):
        assert after == [] and bench.journal.sightings.jobs_at(str(bench.root / "run" / pieces / "hf_ckpt")) == [before.id]
    else:
        assert [Path(job.checkpoint.path).name for job in after] == ["hf_ckpt"]
        assert [job.target for job in after] == [before.target], "it has the step's folder"
