"""A package with a format is removed, replaced or broken between two starts of the daemon, with jobs of it open, ended and kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.operating.integrity.fsck import examine
from tests.runner.conftest import ROOT, Toy, copied
from tests.service import making

PACKAGE = Path(__file__).parent / "npz" / "npz_format"
VARIANTS = ("pytorch", "npz", "npz-coarse")


class Box(Toy):
    """The real daemon with toy stages, on a box where a package may be installed."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"variants": VARIANTS, **options})
        self.site = folder / "site"
        self.environment["PYTHONPATH"] = os.pathsep.join([str(self.site), str(ROOT)])

    def install(self, change: Callable[[str], str] = lambda text: text) -> None:
        shutil.rmtree(self.site, ignore_errors=True)
        shutil.copytree(PACKAGE, self.site / "npz_format")
        declaration = self.site / "npz_format" / "format.py"
        declaration.write_text(change(declaration.read_text()))
        metadata = self.site / "npz-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: npz\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[ckptd.formats]\nnpz = npz_format.format:FORMAT\n")

    def remove(self) -> None:
        shutil.rmtree(self.site)

    def sound(self) -> None:
        assert examine(self.state, self.exports, quiescent=True, deep=True).findings == ()
        assert "Traceback" not in self.log(), self.log()[-4000:]


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    for make in making(Box, tmp_path):
        made = make()
        made.install()
        yield made


def stages(job: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in job["stages"]]


@pytest.mark.slow
@pytest.mark.parametrize("at", [pytest.param("child.npz.run", marks=pytest.mark.slow), "child.check-npz-coarse.sealed"])
def test_a_package_is_removed_while_its_export_is_open(box: Box, pico_checkpoint: Path, at: str) -> None:
    copied(pico_checkpoint, box)
    box.environment["TOY_SECONDS"] = "0.3"
    box.start(fault=at)
    box.wait_for(lambda v: any(stage["name"] == at.split(".")[1] and stage["attempts"] for job in v["jobs"] for stage in job["stages"]))
    box.kill()
    box.remove()
    assert {one.code for one in examine(box.state, box.exports, quiescent=False).findings} <= {"stage-unknown"}
    box.reconfigure('"npz", "npz-coarse"', '"onnx"')
    box.start()
    (job,) = box.wait_ended()
    assert job["state"] == "succeeded", box.log()[-3000:]
    assert "npz" not in stages(job) and "check-onnx" in stages(job)
    assert box.stop() == 0
    box.sound()


@pytest.mark.slow
def test_a_package_is_removed_after_its_export_and_comes_back(box: Box, pico_checkpoint: Path) -> None:
    copied(pico_checkpoint, box)
    box.start()
    (job,) = box.wait_ended()
    assert job["state"] == "succeeded", box.log()[-3000:]
    assert box.stop() == 0
    target = Path(job["target"])
    assert (target / "npz").is_dir()
    shutil.move(box.site, box.folder / "away")
    box.reconfigure('"npz", "npz-coarse"', '"onnx"')
    for words in (("list",), ("show", job["id"]), ("status",), ("list", "--json"), ("show", job["id"], "--json")):
        assert box.run_verb(*words) in (0, 3), (words, box.said)
        assert "Traceback" not in box.said
    box.start()
    copied(pico_checkpoint, box, step=5)
    box.wait_ended(2)
    assert box.stop() == 0
    box.sound()
    assert box.run_verb("queue", "retry", job["id"]) == 0, box.said
    box.start()
    jobs = box.wait_ended(2)
    assert [one["state"] for one in jobs] == ["succeeded"] * 2, box.log()[-3000:]
    assert box.stop() == 0
    box.sound()
    shutil.move(box.folder / "away", box.site)
    box.reconfigure('"onnx"', '"npz", "npz-coarse"')
    before = len(box.begun())
    assert box.run_verb("queue", "retry", job["id"]) in (0, 2)
    box.start()
    copied(pico_checkpoint, box, step=6)
    jobs = box.wait_ended(3)
    assert jobs[-1]["state"] == "succeeded" or jobs[0]["state"] == "succeeded"
    assert len(box.begun()) > before
    assert box.stop() == 0
    box.sound()


@pytest.mark.slow
def test_a_package_is_replaced_by_one_with_other_keys_and_another_version(box: Box, pico_checkpoint: Path) -> None:
    copied(pico_checkpoint, box)
    box.environment["TOY_SECONDS"] = "0.3"
    box.start(fault="child.npz-coarse.run")
    box.wait_for(lambda v: any(stage["name"] == "npz-coarse" and stage["attempts"] for job in v["jobs"] for stage in job["stages"]))
    box.kill()
    box.install(lambda text: text.replace("compress: bool = False", "squeeze: int = 3").replace('stage:full", 1', 'stage:full", 2'))
    box.start()
    (job,) = box.wait_ended()
    assert job["state"] == "succeeded", box.log()[-3000:]
    assert box.stop() == 0
    begun = box.stages_begun()
    assert begun.count("npz") == 2 and begun.count("merge") == 1, begun
    box.sound()


@pytest.mark.slow
def test_a_package_is_removed_while_the_daemon_runs(box: Box, pico_checkpoint: Path) -> None:
    box.config.write_text(box.config.read_text() + "[limits]\nattempts = 1\n")
    box.start()
    copied(pico_checkpoint, box)
    box.wait_ended()
    box.remove()
    copied(pico_checkpoint, box, step=5)
    jobs = box.wait_ended(2)
    new = next(job for job in jobs if job["step"] == 5)
    assert new["state"] == "partial", box.log()[-3000:]
    states = {stage["name"]: stage["state"] for stage in new["stages"]}
    assert states["pytorch"] == states["merged"] == states["report"] == "succeeded"
    assert (states["npz"], states["check-npz"]) == ("failed", "skipped")
    assert box.stop() == 0
    box.sound()
