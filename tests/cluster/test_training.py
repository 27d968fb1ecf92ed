"""A real training, the demo's by Trainer and PEFT, whose export runs by a real Slurm and by a real Ray with all that the demo asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli.demo import ASKED
from daemon.cli.demo.setup import configure
from tests.cluster.remote import Cluster, of_ray, of_slurm
from tests.service import Service

pytestmark = pytest.mark.slow
BASE_SECONDS, STEPS = "15", "40"
PATIENCE = 900.0


def run(*words: str) -> None:
    """One of the demo's trainings, to its end."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's base model."""
    folder = tmp_path_factory.mktemp("bases") / "pico-english"
    run("handlers.demo.make_base", str(folder), "--seconds", BASE_SECONDS, "--threads", "1")
    return folder


class Elsewhere(Service):
    """The daemon of the demo, all of whose stages run by a scheduler."""

    def __init__(self, folder: Path, base: Path, cluster: Cluster) -> None:
        super().__init__(folder)
        self.config = configure(folder, 1)
        (folder / "bases").symlink_to(base.parent)
        self.config.write_text(self.config.read_text() + cluster.text)
        self.environment = {**cluster.variables, "CKPTD_LIMITS__PASS_ENVIRONMENT": '["PYTHONPATH"]'}


@pytest.fixture(params=["slurm", "ray"])
def service(request: pytest.FixtureRequest, tmp_path: Path, base: Path) -> Iterator[Elsewhere]:
    by_slurm = request.param == "slurm"
    cluster = of_slurm(request.getfixturevalue("site")) if by_slurm else of_ray(request.getfixturevalue("ray_site"))
    made = Elsewhere(tmp_path, base, cluster)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def test_each_artifact_of_a_training_passes_whose_stages_run_elsewhere(service: Elsewhere, base: Path) -> None:
    service.start()
    run("handlers.demo.finetune", str(base), str(service.root / "asyncio"), "--steps", STEPS, "--save-steps", STEPS, "--threads", "1")
    (job,) = service.wait_ended(seconds=PATIENCE)
    assert service.stop() == 0
    assert (job["state"], job["artifacts"]) == ("succeeded", dict.fromkeys(ASKED, "passed")), service.log()[-3000:]
    begun = {path.parent.name for path in (service.state / "jobs").glob("*/*/job.json")}
    claims = {path.parent.name: json.loads(path.read_bytes())["by"] for path in (service.state / "jobs").glob("*/*/claim.json")}
    assert claims == dict.fromkeys(begun, "worker") and len(begun) == len(job["stages"]), "all of it ran there, each stage once"
