"""Toolchains that are installed for real, below what TOOLCHAINS_TEST_STATE names, or else in a temporary folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.toolchains import install
from daemon.toolchains.registry import Toolchains
from tests.sharing import shared


def state_with(factory: pytest.TempPathFactory, name: str) -> Path:
    """A state directory with the toolchain, which one of the processes that run the tests installs, with pip's own index."""

    def put(folder: Path) -> Path:
        state = Path(os.environ.get("TOOLCHAINS_TEST_STATE") or folder)
        install.install(Toolchains(state), name, print)
        return state

    return shared(factory, f"toolchain-{name}", put)


def folder_of(state: Path, name: str) -> Path:
    """The toolchain's own folder."""
    found = Toolchains(state).get(name)
    assert found is not None
    return found.folder


def imported(folder: Path) -> Iterator[None]:
    """While this runs, what the toolchain holds can be imported here too, where the main environment has no such package."""
    (site,) = folder.glob("lib/python*/site-packages")
    sys.path.append(str(site))
    yield
    sys.path.remove(str(site))
