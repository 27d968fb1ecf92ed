"""The world that the checker of invariants looks at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fsck.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh state directory with its journal open."""
    one = World(tmp_path)
    yield one
    one.close()
