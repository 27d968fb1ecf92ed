"""A scheduler of the tests' own and a real Slurm, with the executor above them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.running.cluster import course, link
from daemon.running.cluster.slurm.scheduler import Slurm
from tests.cluster.bench import Bench
from tests.cluster.fake import FakeScheduler
from tests.cluster.ray_site import RaySite, python_with_ray
from tests.cluster.remote import Remote
from tests.cluster.slurm_site import SlurmSite, fetch
from tests.runner.conftest import add
from tests.service import making

__all__ = ["add"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions come one after the other, and workers find this checkout."""
    monkeypatch.setattr(link, "LOOK_SECONDS", 0.3)
    monkeypatch.setattr(link, "QUICK_SECONDS", 0.05)
    monkeypatch.setattr(course, "UNCONFIRMED_SECONDS", 0.5)
    monkeypatch.setattr(link, "FULL_SECONDS", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeScheduler]:
    scheduler = FakeScheduler()
    yield scheduler
    scheduler.close()


@pytest.fixture
def bench(tmp_path: Path, fake: FakeScheduler) -> Iterator[Bench]:
    made = Bench(tmp_path, fake)
    yield made
    made.close()


@pytest.fixture(scope="session")
def site_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked packages of a real Slurm."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("a real Slurm is made of Debian's packages, and there is no apt-get here")
    cache = tmp_path_factory.getbasetemp().parent / "slurm-packages"
    try:
        return fetch(cache)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Slurm's packages can't be fetched here: {error}")


@pytest.fixture(scope="session")
def site(site_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    """A real Slurm for the tests of this process."""
    made = SlurmSite(site_tree, tmp_path_factory.mktemp("slurm"))
    yield made
    made.close()


@pytest.fixture
def slurm_bench(tmp_path: Path, site: SlurmSite) -> Iterator[Bench]:
    made = Bench(tmp_path, Slurm(directory=str(site.commands)))
    yield made
    made.close()


@pytest.fixture(scope="session")
def ray_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RaySite]:
    """A real Ray for the tests of this process; an environment for it is kept in the folder that RAY_TEST_ENVIRONMENT names."""
    kept = os.environ.get("RAY_TEST_ENVIRONMENT")
    try:
        python = python_with_ray(Path(kept) if kept else tmp_path_factory.getbasetemp().parent / "ray-environment")
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Ray can't be installed here: {error}")
    made = RaySite(python)
    yield made
    made.close()


@pytest.fixture
def make_remote(tmp_path: Path) -> Iterator[Callable[..., Remote]]:
    """Makes daemons whose stages run by the scheduler that `cluster` names."""
    below = tmp_path / "remote"
    below.mkdir()
    yield from making(Remote, below)
