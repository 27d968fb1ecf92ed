"""A local Hub behind a proxy, and what delivers to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deliver.contract.bench import Bench
from tests.deliver.sites.hub import SITE
from tests.runner.conftest import add, make_toy

__all__ = ["add", "make_toy"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SITE]:
    (folder := tmp_path / "far end").mkdir()
    with SITE(folder) as site:
        yield site


@pytest.fixture
def bench(site: SITE, tmp_path: Path) -> Bench:
    return Bench(site, tmp_path)
