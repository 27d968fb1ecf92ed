"""Programs of Debian's packages, unpacked once for a run of the tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


def unpacked(fetch: Callable[[Path], Path], folder: Path, programs: str) -> Path:
    """Where `fetch` has put them; skips the test where there is no apt-get, or no mirror that answers."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip(f"{programs} come from Debian's packages, and there is no apt-get here")
    try:
        return fetch(folder)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"the packages of {programs} can't be fetched here: {error}")
