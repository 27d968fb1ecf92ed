"""Fixtures of several files about publication."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where an export goes; nothing is there yet."""
    return tmp_path / "exports" / "run" / "step-4"
