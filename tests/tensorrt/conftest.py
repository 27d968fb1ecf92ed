"""The real toolchain, and a machine with a GPU as far as one can be stood in for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from handlers.tensorrt.box import session
from tests.sharing import shared
from tests.toolchains import real
from tests.toolchains.real import lab, run  # noqa: F401

state, toolchain, libraries = real.fixtures("tensorrt-rtx")
STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what stands in for NVIDIA's driver."""

    def make(folder: Path) -> Path:
        command = ["gcc", "-shared", "-fPIC", "-o", str(folder / session.DRIVER), str(STAND_IN / "driver.c")]
        subprocess.run(command, check=True, capture_output=True)
        return folder

    return shared(tmp_path_factory, "stand-in-driver", make)


@pytest.fixture
def gpu(driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process has a stand-in of TensorRT and of a GPU."""
    monkeypatch.setattr(session, "DRIVER", str(driver / session.DRIVER))
    monkeypatch.setenv("STAND_IN_DRIVER", str(driver / session.DRIVER))
    monkeypatch.syspath_prepend(str(STAND_IN))
    session.gpu.cache_clear()
    yield driver
    session.gpu.cache_clear()
    sys.modules.pop("tensorrt", None)
