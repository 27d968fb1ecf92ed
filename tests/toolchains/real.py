"""Toolchains that are installed for real, below what TOOLCHAINS_TEST_STATE names, or else in a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
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


def export(checkpoint: Path, state: Path, folder: Path, variants: Sequence[str]) -> Path:
    """The folder of an export by the command line, all of whose variants passed."""
    environment = {
        **os.environ, "CKPTD_STATE__DIRECTORY": str(state), "XDG_STATE_HOME": str(folder / "xdg"), "CKPTD_LIMITS__PRIORITY": "normal",
        "HF_HUB_OFFLINE": "1", "CKPTD_EXPORT__VARIANTS": ",".join(variants),
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.rglob("report.json")).parent
