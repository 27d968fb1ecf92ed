"""The real toolchain, and its libraries beside those of the main environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.toolchains import real


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with the toolchain."""
    return real.state_with(tmp_path_factory, "openvino")


@pytest.fixture(scope="session")
def toolchain(state: Path) -> Path:
    """Its folder."""
    return real.folder_of(state, "openvino")


@pytest.fixture
def libraries(toolchain: Path) -> Iterator[None]:
    """What it holds can be imported here too."""
    yield from real.imported(toolchain)
