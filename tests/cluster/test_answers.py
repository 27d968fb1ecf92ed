"""What schedulers answer, where a short program that answers so stands for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome
from daemon.running.cluster.port import Unsure
from daemon.running.cluster.ray import connection
from daemon.running.cluster.ray.connection import Connection
from daemon.running.cluster.slurm.scheduler import Slurm
from tests.cluster.bench import Bench, outcome, until
from tests.cluster.fake import FakeScheduler
from tests.cluster.test_accounting import program

CLIENT = """
import json, pathlib, sys
cluster = pathlib.Path(sys.argv[1])
mine = cluster.read_text()
print(json.dumps({"answer": "connected"}), flush=True)
for line in sys.stdin:
    now = cluster.read_text()
    print(json.dumps({"answer": mine} if now == mine else {"unsure": now}), flush=True)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose content is the cluster with which a client was connected, or what it says to those of another one."""
    (tmp_path / "driver.py").write_text(CLIENT)
    monkeypatch.setattr(connection, "DRIVER", tmp_path / "driver.py")
    path = tmp_path / "cluster"
    path.write_text("first")
    return path


def test_a_client_of_a_cluster_that_was_made_anew_is_replaced_at_once(cluster: Path) -> None:
    asked = Connection(sys.executable, str(cluster))
    assert asked.ask("look") == "first"
    cluster.write_text("AuthenticationError: WrongClusterID: set RAY_AUTH_TOKEN")
    with pytest.raises(Unsure, match="WrongClusterID"):
        asked.ask("look")
    assert asked.pid is None, "the process of the old cluster has ended"
    cluster.write_text("second")
    assert asked.ask("look") == "second"
    asked.close()


def test_a_client_that_gives_no_answer_for_long_is_replaced_and_one_that_fails_once_is_not(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Connection(sys.executable, str(cluster))
    asked.ask("look")
    before = asked.pid
    cluster.write_text("RuntimeError: something else")
    with pytest.raises(Unsure):
        asked.ask("look")
    assert asked.pid == before
    monkeypatch.setattr(connection, "UNSURE_SECONDS", 0.0)
    with pytest.raises(Unsure):
        asked.ask("look")
    assert asked.pid is None
    asked.close()


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions)",
            "no machine can take it: down, drained or reserved",
        ),
        ("Something new, that is long", "Slurm says Something new, that is long"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "the machines that it needs are not available (ReqNodeNotAvail)"),
    ],
)
def test_why_a_job_waits_is_said_to_its_end(tmp_path: Path, reason: str, said: str) -> None:
    program(tmp_path, "squeue", f"echo '6|ckptd.a|PENDING|{reason}|'")
    assert Slurm(directory=str(tmp_path)).look(["ckptd.a"])["ckptd.a"].reason == said


def test_a_scheduler_that_is_away_is_said_at_its_stages_and_what_it_never_had_is_handed_in_soon_after(
    tmp_path: Path, fake: FakeScheduler
) -> None:
    bench = Bench(tmp_path, fake, late=1000.0)
    fake.down = True
    attempt = bench.start()
    until(lambda: attempt.place.away)
    assert attempt.progress.message.startswith("fake gives no answer since 2")
    assert attempt.progress.message.endswith("(nobody is there); not known whether it was handed in")
    fake.down = False
    assert outcome(attempt) == (Outcome.RETRYABLE, FaultCode.SCHEDULER_AWAY), "long before a file could be seen late"
    assert attempt.place.away == "" and fake.submitted == []
    bench.close()


def test_a_scheduler_that_could_not_be_asked_has_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Slurm(directory=str(tmp_path / "nowhere")))
    attempt = bench.start()
    until(lambda: attempt.progress.message.endswith("not handed in yet"))
    assert "sbatch can't be run" in attempt.progress.message
    bench.close()
