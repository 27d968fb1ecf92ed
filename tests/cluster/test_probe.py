"""`ckptd check` with a cluster: what a machine sees is said before anything needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config.settings import Settings
from daemon.operating.diagnosis import cluster
from daemon.operating.diagnosis.cluster import examine_cluster
from tests.cluster.fake import FakeScheduler


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({
        "state": {"directory": tmp_path / "state"}, "output": {"directory": tmp_path / "out"}, "cluster": {"executor": "slurm"},
        "limits": {"pass_environment": ["PYTHONPATH"]},
    })  # fmt: skip


def test_a_machine_that_has_all_is_named(settings: Settings, fake: FakeScheduler) -> None:
    here = examine_cluster(settings, fake)
    assert (here.problems, here.warnings) == ((), ())
    assert here.facts["cluster"].startswith("fake: ") and "cores" in here.facts["cluster"]
    assert list(settings.state_directory.glob("probe-*")) == [], "nothing of it is left"


def test_what_it_lacks_is_a_problem(settings: Settings, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "library_version", lambda name: "0.1" if name == "torch" else "")
    monkeypatch.setattr(cluster, "LIBRARIES", ("torch",))
    (problem,) = examine_cluster(settings, fake).problems
    assert "torch" in problem and "instead of 0.1" in problem


def test_a_scheduler_that_refuses_or_is_away_is_a_problem(settings: Settings, fake: FakeScheduler) -> None:
    fake.refusal = "Invalid account"
    assert "Invalid account" in examine_cluster(settings, fake).problems[0]
    fake.down = True
    assert "gives no answer" in examine_cluster(settings, fake).problems[0]


def test_a_busy_cluster_is_no_fault(settings: Settings, fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PROBE_SECONDS", 0.3)
    fake.held = True
    here = examine_cluster(settings, fake)
    assert here.problems == () and "nobody let it begin" in here.warnings[0]
