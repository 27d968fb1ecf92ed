"""The real toolchain, and its libraries beside those of the main environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.toolchains import install
from daemon.toolchains.registry import Toolchains
from tests.sharing import shared


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with the toolchain, below what TOOLCHAINS_TEST_STATE names, or else a temporary folder."""

    def put(folder: Path) -> Path:
        state = Path(os.environ.get("TOOLCHAINS_TEST_STATE") or folder)
        install.install(Toolchains(state), "openvino", print)
        return state

    return shared(tmp_path_factory, "openvino", put)


@pytest.fixture(scope="session")
def toolchain(state: Path) -> Path:
    """Its folder."""
    found = Toolchains(state).get("openvino")
    assert found is not None
    return found.folder


@pytest.fixture
def libraries(toolchain: Path) -> Iterator[None]:
    """What it holds can be imported here too, where the main environment has no such package."""
    (site,) = toolchain.glob("lib/python*/site-packages")
    sys.path.append(str(site))
    yield
    sys.path.remove(str(site))
