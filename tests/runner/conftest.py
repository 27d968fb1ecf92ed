"""A daemon with toy stages, a runner with fake children, and checkpoints to feed them with."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.contract.disk.export_layout import README
from daemon.contract.disk.files import sha256_file
from daemon.contract.values import digest_of
from daemon.journal.journal import Journal
from daemon.running.runner import Runner
from daemon.system import episodes
from daemon.system.processes import looks
from tests.detection.helpers import copy_of
from tests.runner.desk import Desk, FakeExecutor
from tests.runner.outside_world import World, make_world
from tests.service import ENDED, Service, making

ROOT = Path(__file__).parents[2]
ALL = ("pytorch", "onnx", "onnx-int8")
ONE = ("pytorch",)
STAGES_OF_ALL = ("merge", "pytorch", "onnx", "onnx-int8", "reference", "merged", "check-onnx", "check-onnx-int8", "report")
STAGES_OF_ONE = ("merge", "pytorch", "reference", "merged", "report")


class Toy(Service):
    """The real daemon, journal and child entry; the stages take milliseconds (`tests.runner.toy_stages`).

    One variant, unless a test is about several: each stage is a process, and their start is most of what a toy job takes."""

    command = (sys.executable, "-m", "tests.runner.toy_daemon")

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **{"variants": ONE, **options})
        self.log_of_attempts = folder / "attempts.txt"
        self.held = folder / "held"
        """While it exists the merge stays at its second shard."""
        self.environment = {"PYTHONPATH": str(ROOT), "TOY_LOG": str(self.log_of_attempts), "TOY_HOLD": str(self.held)}

    def begun(self) -> list[tuple[str, str, int]]:
        """(job, stage, attempt) of every attempt whose child began."""
        text = self.log_of_attempts.read_text() if self.log_of_attempts.exists() else ""
        return [(job, stage, int(number)) for job, stage, number in (line.split() for line in text.splitlines())]

    def start_held(self, add: Callable[[Self], object]) -> Self:
        """Start it with a checkpoint whose merge stays at its second shard."""
        self.held.touch()
        add(self)
        self.start()
        self.wait_held()
        return self

    def start_again(self) -> None:
        """Start it once more; as soon as it sees the merge that is held, let that go on."""
        self.start()
        self.wait_for(lambda v: v["daemon"]["running"] and self.process is not None and v["daemon"]["pid"] == self.process.pid, 60)
        self.wait_held()
        self.held.unlink()

    def wait_held(self) -> None:
        """Wait until the daemon that runs sees the merge at its second shard."""
        self.wait_for(lambda v: v["daemon"]["running"] and any((s["fraction"] or 0) > 0.3 for job in v["jobs"] for s in job["stages"]), 60)

    def stages_begun(self) -> list[str]:
        return [stage for _, stage, _ in self.begun()]

    def wait_for_death_or_end(self, seconds: float = 120) -> None:
        """Wait until the daemon has died or all its jobs have ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process is not None and self.process.poll() is None:
            jobs = self.status()["jobs"]
            if jobs and all(job["state"] in ENDED for job in jobs):
                time.sleep(1.0)  # what is done after the end of a job
                return
            time.sleep(0.1)

    def reconfigure(self, old: str, new: str) -> None:
        """Change the configuration file."""
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))


def artifacts(target: Path) -> dict[str, str]:
    """File → digest of what an export publishes, reports and the folders' READMEs left out since they tell times."""
    files = sorted(path for path in target.rglob("*") if path.is_file() and path.parent != target and path.name != README)
    return {path.relative_to(target).as_posix(): sha256_file(path) for path in files}


def copied(checkpoint: Path, service: Service, run: str = "run", step: int = 4) -> Path:
    """A checkpoint of its own content below a service's root, there all at once."""
    return arrived(checkpoint, service.root / run, step, service.folder / f"incoming-{run}-{step}", own=[run, step])


def arrived(checkpoint: Path, run: Path, step: int, hidden: Path, own: list[str | int]) -> Path:
    """A checkpoint in a run's folder, there all at once; made in `hidden`, with a content that follows from `own`."""
    copy_of(checkpoint, hidden, step=step)
    weights = hidden / "adapter_model.safetensors"
    last = struct.pack("<f", 1 + int(digest_of(own)[:6], 16) / 2**24)
    weights.write_bytes(weights.read_bytes()[:-4] + last)
    target = run / f"checkpoint-{step}"
    target.parent.mkdir(parents=True, exist_ok=True)
    return hidden.rename(target)


@pytest.fixture
def make_toy(tmp_path: Path) -> Iterator[Callable[..., Toy]]:
    """Makes daemons with toy stages and ends whatever is left of them."""
    yield from making(Toy, tmp_path)


@pytest.fixture
def make_desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Desk]]:
    """Makes runners with fake children, each with a journal of its own; keywords are sections of the configuration."""
    monkeypatch.setattr(looks, "FIRST_SECONDS", 30.0)  # on a busy box too, a round has the answers of its own looks
    journals: list[Journal] = []

    def make(**sections: dict[str, Any]) -> Desk:
        home = tmp_path / f"desk-{len(journals)}"
        limits = {"disk_reserve": 0, "memory_fraction": 1, "threads": 4, **sections.get("limits", {})}
        settings = Settings.model_validate({**sections, "limits": limits, "state": {"directory": home}})
        journal = Journal(prepare(home, home / "out").journal)
        journals.append(journal)
        desk: Desk

        executor = FakeExecutor(lambda order: desk.start(order))
        desk = Desk(Runner(settings, journal, prepare(home, home / "out"), executor), journal, home)
        return desk

    yield make
    for journal in journals:
        journal.close()


@pytest.fixture
def world(make_desk: Callable[..., Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A job and what it reads; what is away is looked at in each round."""
    monkeypatch.setattr(episodes, "FIRST_LOOKS", 0.0)
    return make_world(make_desk, tmp_path)


@pytest.fixture
def add(pico_checkpoint: Path) -> Callable[..., Path]:
    """Adds a checkpoint of its own content below a service's root."""

    return lambda service, run="run", step=4: copied(pico_checkpoint, service, run, step)


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())
