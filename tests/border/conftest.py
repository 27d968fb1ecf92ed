from __future__ import annotations

from pathlib import Path

import pytest

from tests.border.mutations import make_sources
from tests.detection.bench import bench
from tests.sharing import shared

__all__ = ["bench"]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Real checkpoints and their base, by name. Read only."""
    return shared(tmp_path_factory, "sources", make_sources)
