"""The toy daemon, whose stages run by a real scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from daemon.config.loading import load
from daemon.operating.integrity.fsck import examine
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.workers.executor import LocalExecutor
from tests.cluster.ray_site import RaySite
from tests.cluster.slurm_site import SlurmSite
from tests.runner.conftest import STAGES_OF_ONE, Toy

PASSED = '["PYTHONPATH", "TOY_LOG", "TOY_HOLD"]'


@dataclass(frozen=True)
class Cluster:
    """A scheduler, as a daemon's configuration and its environment name it."""

    text: str
    variables: Mapping[str, str]


def of_slurm(site: SlurmSite, more: str = "") -> Cluster:
    """A Slurm; `more`: of `[cluster]`."""
    return Cluster(f'[cluster]\nexecutor = "slurm"\nlate_seconds = 3\n{more}', {"PATH": f"{site.commands}:{os.environ['PATH']}"})


def of_ray(site: RaySite, more: str = "", *, python: str | None = None) -> Cluster:
    """A Ray; `more`: of `[cluster.ray]`. `python`: the client's, "" for the daemon's own."""
    ray = f'[cluster.ray]\naddress = "{site.address}"\npython = "{site.python if python is None else python}"\n{more}'
    return Cluster(f'[cluster]\nexecutor = "ray"\nlate_seconds = 3\n{ray}', site.variables)


class Remote(Toy):
    """The toy daemon, whose stages run by a scheduler."""

    command = (sys.executable, "-m", "tests.cluster.toy_daemon")

    def __init__(self, folder: Path, cluster: Cluster, **options: Any) -> None:
        super().__init__(folder, **{"extra": cluster.text, **options})
        self.cluster = cluster
        self.environment |= {**cluster.variables, "CKPTD_LIMITS__PASS_ENVIRONMENT": PASSED}

    def move(self, cluster: Cluster) -> None:
        """Let the next start use another scheduler."""
        self.reconfigure(self.cluster.text, cluster.text)
        self.cluster = cluster
        self.environment |= cluster.variables

    def job_id(self) -> str:
        """Id of its job, once there is one."""
        return str(self.wait_for(lambda v: v["jobs"])["jobs"][0]["id"])

    def cancel(self) -> None:
        """`ckptd queue cancel` of its job, until that is cancelled."""
        assert self.run_verb("queue", "cancel", self.job_id()) == 0, self.said
        self.wait_for(lambda v: [job["state"] for job in v["jobs"]] == ["cancelled"])

    def scheduler_of(self, stage: str) -> str:
        """Which has the latest attempt at a stage, "" for this box."""
        orders = sorted((self.state / "jobs").glob(f"*/{stage}.*/orders.json"))
        return str(json.loads(orders[-1].read_bytes())["scheduler"]) if orders else ""

    def names(self, place: Mapping[str, str]) -> None:
        """`ckptd status`, `list` and `show` name the machine that runs a stage, and the scheduler's job, in words and as JSON."""
        host, number = place["host"], place["id"]
        for verb in (["status"], ["list"], ["show", self.job_id()]):
            assert self.run_verb(*verb, "--json") == 0 and f'"host": "{host}"' in self.said and f'"id": "{number}"' in self.said, self.said
            assert self.run_verb(*verb) == 0, self.said
            words = " ".join(self.said.split())
            assert host in words and f"{place['scheduler']} job {number}" in words, self.said

    @contextlib.contextmanager
    def follows(self, stage: str) -> Iterator[IO[str]]:
        """What `ckptd logs --follow` shows of a stage."""
        words = ("logs", "--follow", "--job", self.job_id(), "--stage", stage, "--config", str(self.config))
        environment = {**os.environ, **self.environment}
        with subprocess.Popen([sys.executable, "-m", "daemon", *words], stdout=subprocess.PIPE, text=True, env=environment) as reader:
            assert reader.stdout is not None
            bound = threading.Timer(60, reader.kill)
            bound.start()
            try:
                yield reader.stdout
            finally:
                bound.cancel()
                reader.kill()

    def sound(self) -> None:
        """Nothing is wrong with state and output, with the configuration and without."""
        for executor in (with_cluster(load(self.config, need_roots=True).cluster, LocalExecutor()), None):
            findings = examine(self.state, self.exports, quiescent=True, deep=True, executor=executor)
            assert findings.findings == (), findings

    def ends_well(self) -> None:
        """The export succeeds, each of its stages was begun once, and nothing is wrong afterwards."""
        (job,) = self.wait_ended()
        assert self.stop() == 0
        assert job["state"] == "succeeded", self.log()[-3000:]
        assert sorted(self.stages_begun()) == sorted(STAGES_OF_ONE), "each once"
        self.sound()
