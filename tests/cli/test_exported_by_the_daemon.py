"""`ckptd export` of a checkpoint that the daemon has exported: it says so, and makes it again only where it would be another."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runner.conftest import Toy, copied
from tests.verbs import run_verb


@dataclass
class Made:
    """What a daemon has made of a checkpoint."""

    service: Toy
    checkpoint: Path
    target: Path

    def export(self, *more: str) -> subprocess.CompletedProcess[str]:
        words = ["export", str(self.checkpoint), "--config", str(self.service.config), *more]
        return run_verb(words, Path.cwd(), os.environ, timeout=240)

    def inode(self) -> int:
        return (self.target / "MANIFEST.json").stat().st_ino


@pytest.fixture
def made(make_toy: Callable[..., Toy], pico_checkpoint: Path, pico_base: Path) -> Made:
    """A checkpoint that a daemon has exported, which runs on."""
    service = make_toy(extra=f'[base]\nsearch = ["{pico_base.parent}"]\n')
    checkpoint = copied(pico_checkpoint, service)
    service.start()
    value = service.wait_for(lambda status: bool(status["counts"].get("succeeded")))
    return Made(service, checkpoint, Path(value["jobs"][0]["target"]))


def test_what_the_daemon_has_exported_is_named_and_not_made_again(made: Made) -> None:
    before = made.inode()
    again = made.export()
    assert again.returncode == 0 and "the daemon has exported it already; --force makes it again" in again.stderr
    assert str(made.target) in again.stdout and made.inode() == before
    assert again.stdout.count("passed") == 1, "its table is shown"


@pytest.mark.slow
def test_it_is_made_where_it_is_asked_for_again_or_in_another_output(made: Made, tmp_path: Path) -> None:
    before, other = made.inode(), tmp_path / "elsewhere"
    assert "already" not in made.export("--output", str(other)).stderr
    assert (other / made.target.parent.name / made.target.name / "MANIFEST.json").is_file()
    forced = made.export("--force")
    assert forced.returncode == 0 and "already" not in forced.stderr and made.inode() != before
    made.service.stop()
    assert "already exported; --force" in made.export().stderr, "the one by hand lies there now"
