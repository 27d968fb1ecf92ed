"""The daemon refuses a stage whose toolchain is missing, names the command that brings it, and takes nothing else from the export."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.runner.conftest import ALL, Toy, copied
from tests.service import making
from tests.toolchains.conftest import Fake


class Wanting(Toy):
    """A daemon whose stage `onnx-int8` wants the toolchain `fake`."""

    command = (sys.executable, "-m", "tests.toolchains.toy_daemon")


@pytest.fixture
def make_wanting(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Wanting]]:
    """Makes such daemons and ends whatever is left of them."""
    monkeypatch.setenv("TOY_DEFINITIONS", str(fake.chains.known["fake"].requirements.parent))
    yield from making(Wanting, tmp_path)


@pytest.mark.slow
def test_a_missing_toolchain_fails_its_stage_alone_until_it_is_there(
    make_wanting: Callable[..., Wanting], fake: Fake, pico_checkpoint: Path
) -> None:  # R4.5
    daemon = make_wanting(variants=ALL)
    copied(pico_checkpoint, daemon)
    daemon.start()
    daemon.wait_ended()
    (job,) = daemon.status()["jobs"]
    assert job["state"] == "partial"
    assert "onnx-int8" not in daemon.stages_begun() and "onnx" in daemon.stages_begun()
    log = (daemon.state / "ckptd.log").read_text()
    assert "Could not run the stage onnx-int8: the toolchain fake is not installed." in log
    assert "Fix: run `ckptd toolchain install fake`." in log
    shutil.copytree(fake.chains.home, daemon.state / "toolchains", symlinks=True)
    copied(pico_checkpoint, daemon, step=8)
    daemon.wait_ended(2)
    assert {job["step"]: job["state"] for job in daemon.status()["jobs"]}[8] == "succeeded"
    assert (daemon.state / "cache" / "toolchains" / "fake").resolve().parent == daemon.state / "toolchains"
