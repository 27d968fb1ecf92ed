"""A started S3."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deliver.contract.bench import Bench, started
from tests.deliver.store.s3_site import S3Site
from tests.environments import of_clients


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the server's environment."""
    try:
        return of_clients(tmp_path_factory).python("stores")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"moto can't be installed here: {error}")


@pytest.fixture
def bench(tmp_path: Path, python: Path) -> Iterator[Bench]:
    with started(S3Site, tmp_path, python=python) as made:
        yield made
