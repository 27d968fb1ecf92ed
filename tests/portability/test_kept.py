"""What another processor made is not taken for what this one would make."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.contract import cpu
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.plan import all_specs
from daemon.journal.rows import JobRow
from daemon.running.rules.resume_keys import stage_key
from handlers.merge.engine.resume_ledger import purpose
from tests.onnx.conftest import make_context

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
