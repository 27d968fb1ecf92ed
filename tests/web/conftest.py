"""The real toolchain, and its libraries beside those of the main environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from handlers.web import engine
from tests.toolchains import real
from tests.toolchains.real import lab, run  # noqa: F401

state, toolchain, libraries = real.fixtures("web")


@pytest.fixture
def packages(toolchain: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Engines that are loaded in the test's process use the toolchain's packages of npm."""
    folder = toolchain / "node_modules"
    monkeypatch.setattr(engine, "packages_folder", lambda: folder)
    yield folder
