"""A journal with ended exports that are delivered: real rows, real processes, published folders that are made by hand.

`python -m tests.deliver.queue.yard FOLDER` is the part of a daemon that delivers, until nothing is left to do: it can be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from daemon.contract.delivering.declaration import DeliveryKind, NoOptions
from daemon.delivering import rules
from daemon.delivering.endpoint import Policy
from daemon.delivering.queue import Deliveries, Wanted
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.shipment_rows import NewShipment, ShipmentRow
from tests.deliver import exports
from tests.journal.entries import STAGES, WORK, reference
from tests.verbs import start_program

REFERENCE = "tests.deliver.contract.reference:Reference"
SCRIPTED = "tests.deliver.queue.scripted:Scripted"
ROOT = Path(__file__).parents[3]
FILES = {"README.md": b"# An export\n", "pytorch/model.safetensors": 70_000, "pytorch/config.json": b"{}", "onnx/model.onnx": 9_000}
PASSED = ("PYTHONPATH",)
"""So that a process of ckptd finds the targets of the tests, which are no part of what is installed."""
SECONDS = 120.0
"""For what happens as soon as the machine gets to it."""


@dataclass(frozen=True)
class Aim:
    """A target of the configuration."""

    name: str = "far"
    kind: str = "reference"
    entry: str = REFERENCE
    options: Mapping[str, Any] = field(default_factory=dict)
    policy: Policy = "all"
    steps: int = 0
    variants: tuple[str, ...] = ()
    bandwidth: int = 0
    keep: int = 0
    read_back: bool = True
    share: float = 0.9
    key: str = ""
    runs: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()
    secret_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def declared(self) -> DeliveryKind:
        return DeliveryKind(self.kind, "a far end of the tests", NoOptions, self.entry, variants=self.fitting)

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.key,) if self.key else ()

    def secret(self) -> str:
        if self.key == "unreadable":
            raise ValueError("there is no such file")
        return self.key

    def is_for(self, run: str) -> bool:
        return not self.runs or run in self.runs


@dataclass
class Yard:
    """The folders of a daemon, and its journal while it is open."""

    folder: Path

    def __post_init__(self) -> None:
        self.state, self.output = self.folder / "state", self.folder / "exports"
        for folder in (self.state, self.output):
            folder.mkdir(exist_ok=True)
        self.journal = Journal(self.state / "journal.sqlite3")

    def close(self) -> None:
        self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def publish(self, step: int, run: str = "run-a", job: str = "", seed: int | None = None) -> exports.Export:
        """An export at the place of that step."""
        export = exports.make(self.output / run / f"step-{step}", run, step, FILES, seed=seed)
        manifest = export.folder / "MANIFEST.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "export_id": job or f"{run}-{step}"}))
        return export

    def end(self, step: int, targets: Sequence[str] = ("far",), run: str = "run-a", job: str = "", **more: Any) -> str:
        """A job that has just ended with an export, which is to be delivered to `targets`; gives its id."""
        job = job or f"{run}-{step}"
        self.publish(step, run, job)
        checkpoint = reference(step, run=run, digest=job)
        self.journal.jobs.add(NewJob(job, checkpoint, WORK, STAGES, Path("/pin"), self.output / run / f"step-{step}", job))
        self.journal.jobs.start(job, None)
        assert self.journal.jobs.finish(job, "succeeded", None, shipments=[NewShipment(name, **more) for name in targets])
        return job

    def row(self, job: str, target: str = "far") -> ShipmentRow:
        return next(row for row in self.journal.shipments.of(job) if row.target == target)

    def queue(self, *aims: Aim, clock: Callable[[], float] = time.time, told: bool = False) -> Deliveries:
        wanted = Wanted(aims, PASSED, lambda event: told)
        return Deliveries(wanted, self.journal, self.state / "deliveries", self.output, clock)


def run_until(queue: Deliveries, done: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Make rounds in this thread, which the processes live as long as."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it takes too long"
        queue.tick()
        queue.wait(0.1)


@contextlib.contextmanager
def ended(queue: Deliveries) -> Iterator[Deliveries]:
    """End what runs at the end."""
    try:
        yield queue
    finally:
        queue._end_flights()


def save(folder: Path, *aims: Aim) -> None:
    """For the processes that are begun by `start`."""
    (folder / "aims.json").write_text(json.dumps([asdict(aim) for aim in aims]))


def start(folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    """The delivering part of a daemon as a process of its own."""
    return start_program(
        [sys.executable, "-m", __name__, str(folder)], {**os.environ, "PYTHONPATH": str(ROOT), **environment}, folder / "log"
    )


def _main(folder: Path) -> None:
    rules.FIRST_PAUSE, rules.LONGEST_PAUSE = 0.2, 1.0
    aims = [Aim(**{**value, **{key: tuple(value[key]) for key in ("variants", "runs", "fitting")}})
            for value in json.loads((folder / "aims.json").read_text())]  # fmt: skip
    with Yard(folder) as yard:
        queue = yard.queue(*aims)
        while True:
            queue.tick()
            rows = yard.journal.database.read("SELECT 1 FROM shipment WHERE state IN ('waiting', 'running')")
            if not rows:
                return
            queue.wait(0.05)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
