"""What another processor made is not taken for what this one would make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract import cpu
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.plan import all_specs
from daemon.journal.rows import JobRow
from daemon.running.rules.resume_keys import stage_key
from daemon.running.runner import Runner
from handlers.merge.engine.resume_ledger import purpose
from tests.onnx.conftest import make_context
from tests.runner.conftest import make_desk
from tests.runner.desk import Desk, done

__all__ = ["make_desk"]
OTHER = cpu.Cpu("x86_64", "GenuineIntel", "a processor of 2013", ("sse4_1", "avx", "f16c", "fma", "avx2"))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """`elsewhere.setattr(*MOVE)` moves this process to another box."""
    return monkeypatch


MOVE = ("daemon.contract.cpu.here", lambda: OTHER)


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    return make_context(tmp_path, "merge", {}, tmp_path)


def test_no_stages_output_is_taken_over_from_another_processor(context: StageContext, elsewhere: pytest.MonkeyPatch) -> None:
    job = JobRow("job", "running", context.checkpoint, context.work, Path("/pin"), Path("/target"), None, "now", None, None)
    before = {spec.name: stage_key(spec, job, {}, None, "cpu") for spec in all_specs()}
    assert before == {spec.name: stage_key(spec, job, {}, None, "cpu") for spec in all_specs()}
    elsewhere.setattr(*MOVE)
    assert not before.items() & {spec.name: stage_key(spec, job, {}, None, "cpu") for spec in all_specs()}.items()


def test_a_merge_does_not_go_on_with_another_processors_shards(elsewhere: pytest.MonkeyPatch) -> None:
    before = purpose([], [], {})
    elsewhere.setattr(*MOVE)
    assert purpose([], [], {}) != before


def test_children_compute_fp32_in_fp32_whatever_the_box_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from daemon.contract.jobs.messages import ChildLimits
    from handlers.child import process

    kept = dict(os.environ)
    os.environ["ONEDNN_DEFAULT_FPMATH_MODE"] = os.environ["NVIDIA_TF32_OVERRIDE"] = "1"
    try:
        process.set_environment(ChildLimits(), str(tmp_path))
        assert not {"ONEDNN_DEFAULT_FPMATH_MODE", "NVIDIA_TF32_OVERRIDE"} & os.environ.keys()
    finally:
        process.tempfile.tempdir = None
        os.environ.clear()
        os.environ.update(kept)


@pytest.mark.parametrize(("placed", "merges"), [(("merge", "reference"), 1), ((), 2)], ids=["by-a-scheduler", "here"])
def test_a_daemon_that_moves_repeats_what_was_made_on_its_box_and_not_what_a_scheduler_placed(
    make_desk: Callable[..., Desk], elsewhere: pytest.MonkeyPatch, placed: tuple[str, ...], merges: int
) -> None:
    desk = make_desk()
    desk.elsewhere(*placed)
    desk.script = lambda context: done(context) if context.stage == "merge" else None
    job = desk.add("run", 1)
    desk.tick(10)
    assert desk.journal.stages.of(job)["merge"].state == "succeeded"
    elsewhere.setattr(*MOVE)
    desk.runner = Runner(desk.runner.settings, desk.journal, desk.runner.paths, desk.runner.executor)
    desk.runner.recover()
    desk.tick(20)
    assert len(desk.order("reference")) == 2, "it has gone on"
    assert len(desk.order()) == merges
