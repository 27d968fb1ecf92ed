"""`ckptd check` with a cluster: what a machine sees is said before anything needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from daemon.operating.diagnosis import cluster
from daemon.operating.diagnosis.cluster import examine_cluster
from tests.cluster.fake import FakeScheduler


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({
        "state": {"directory": tmp_path / "state"}, "output": {"directory": tmp_path / "out"},
        "cluster": {"executor": "slurm", "late_seconds": 1}, "limits": {"pass_environment": ["PYTHONPATH"]},
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
    fake.reason = "no machine of the cluster has 1 a100"
    (problem,) = examine_cluster(settings, fake).problems
    assert "no machine of the cluster has 1 a100" in problem, "no attempt would ever begin"


def test_a_state_that_was_made_for_the_probe_is_private(settings: Settings, fake: FakeScheduler) -> None:
    examine_cluster(settings, fake)
    assert settings.state_directory.stat().st_mode & 0o777 == 0o700


class Elsewhere(FakeScheduler):
    """A scheduler whose machine has other folders: before a job begins there, `differs` makes this one look so."""

    differs: Callable[[], object]

    def begin(self, token: str) -> None:
        self.differs()
        super().begin(token)


def test_a_folder_that_is_another_there_is_a_problem(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "runs" / "a-run").mkdir(parents=True)
    elsewhere = Elsewhere()

    def differs() -> None:
        for shared in ("out", "runs"):
            (tmp_path / shared).rename(tmp_path / f"{shared}-unmounted")
            (tmp_path / shared).mkdir()

    elsewhere.differs = differs
    watched = settings.model_copy(update={"watch": settings.watch.model_copy(update={"roots": (tmp_path / "runs",)})})
    try:
        problems = examine_cluster(watched, elsewhere).problems
    finally:
        elsewhere.close()
    assert [problem.partition(" at ")[2] for problem in problems] == [
        f"{tmp_path / shared} than this machine: is it not mounted there?" for shared in ("out", "runs")
    ]


def test_folders_that_both_have_are_left_as_they_were(settings: Settings, fake: FakeScheduler, tmp_path: Path) -> None:
    (tmp_path / "out" / "a-run").mkdir(parents=True)
    assert examine_cluster(settings, fake).problems == ()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a-run"] and list(settings.state_directory.iterdir()) == []


@pytest.mark.parametrize(("given", "said"), [
    ({"python": "/none/bin/python"}, "/none/bin/python"), ({"prefix": ["/none/apptainer", "exec"]}, "/none/apptainer"),
    ({"prefix": ["false"]}, "any output; mount state.directory"),
    ({"slurm": {"scratch": "/none/scratch"}}, "the scratch folder /none/scratch"),
])  # fmt: skip
def test_what_would_have_each_attempt_fail_is_a_problem(
    settings: Settings, fake: FakeScheduler, given: Mapping[str, object], said: str
) -> None:
    cluster = {**settings.cluster.model_dump(), **given}
    changed = settings.model_copy(update={"cluster": type(settings.cluster).model_validate(cluster)})
    here = examine_cluster(changed, fake)
    assert said in here.problems[0] and here.warnings == ()
    assert "within" not in here.problems[0], "it did not wait"


def test_the_probe_asks_for_what_attempts_ask_for(settings: Settings, fake: FakeScheduler) -> None:
    cluster = {**settings.cluster.model_dump(), "slurm": {"cpus": 64, "memory": "900GiB"}}
    examine_cluster(settings.model_copy(update={"cluster": type(settings.cluster).model_validate(cluster)}), fake)
    (job,) = fake.jobs.values()
    assert (job.resources.cpus, job.resources.memory) == (64, 900 << 30)


def test_a_queue_that_no_stage_of_the_configured_variants_uses_gets_no_probe(settings: Settings, fake: FakeScheduler) -> None:
    queues = {"gpu": {"cpus": 2}, "spare": {"cpus": 3}, "rest": {"cpus": 4}}
    stages = {"tensorrt*": "spare", "merge": "gpu", "*": "rest"}
    cluster = {**settings.cluster.model_dump(), "queues": queues, "stages": stages, "slurm": {"cpus": 1}}
    here = examine_cluster(settings.model_copy(update={"cluster": type(settings.cluster).model_validate(cluster)}), fake)
    assert sorted(job.resources.cpus for job in fake.jobs.values()) == [2, 4]
    assert here.problems == () and "fake queue gpu: " in here.facts["cluster"] and "spare" not in here.facts["cluster"]
