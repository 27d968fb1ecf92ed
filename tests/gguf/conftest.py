"""The real toolchain, and its libraries beside those of the main environment."""

from pathlib import Path

import pytest

from tests.toolchains import real
from tests.toolchains.real import lab, run  # noqa: F401

state, toolchain, libraries = real.fixtures("gguf")

BUILDING = 1800
"""Seconds for one test: its fixture compiles llama.cpp, if that is not installed, which takes minutes on a quick machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More time for what needs the toolchain."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(BUILDING))
