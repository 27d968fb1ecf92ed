"""A job in a runner with fake children, and all that it reads from outside, where it can go away."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.operating.monitoring.live import of_export
from daemon.toolchains.registry import IN_USE, MANIFEST, Manifest, Toolchains
from tests.runner.desk import Desk, Desks


@dataclass
class World:
    """A job, and where what it reads lies."""

    desk: Desk
    home: Path
    variants: tuple[str, ...] = ("pytorch",)
    paths: dict[str, Path] = field(default_factory=dict)
    """By the names of the table."""
    job: str = ""

    def fault(self) -> Fault | None:
        waiting = self.desk.runner.waits.of.get(self.job)
        return waiting.fault if waiting else None

    def told(self) -> str:
        """What `ckptd status` has."""
        return of_export(self.desk.runner, "").waiting.get(self.job, "")


def make_world(make_desk: Desks, home: Path) -> World:
    """A base, texts and an output; the job is not added yet."""
    base, texts = home / "models" / "base", home / "texts"
    base.mkdir(parents=True)
    texts.mkdir()
    (base / "config.json").write_text("{}")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (base / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (texts / "prompts.txt").write_text("a prompt\n")
    (texts / "data.jsonl").write_text('{"text": "a text"}\n')
    desk = make_desk(
        base={"map": {"org/base": base}}, limits={"retry_seconds": 0},
        validate={"prompts": str(texts / "prompts.txt"), "data": str(texts / "data.jsonl")},
    )  # fmt: skip
    paths = {
        "base": base, "a file of the base": base / "model.safetensors", "prompts": texts / "prompts.txt",
        "data for checks and calibration": texts / "data.jsonl", "output": desk.home / "out", "pin": desk.home / "pins" / "run-1",
    }  # fmt: skip
    return World(desk, home, paths=paths)


def install(world: World) -> Path:
    """A toolchain that counts as installed, for the stages of another variant."""
    world.variants = ("gguf-f16",)
    chains = Toolchains(world.desk.home)
    folder = chains.folder("gguf")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / IN_USE).touch()
    manifest = Manifest(name="gguf", digest="d", python="3", installed="", seconds=1, size=1, packages={}, probe={})
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    chains.offer(world.desk.runner.paths.cache)
    return folder


def begin(world: World) -> None:
    """Add the job."""
    world.job = world.desk.add("run", 1, base="org/base", variants=world.variants)


def tick_until(world: World, condition: Callable[[], object], what: str) -> None:
    """Let the runner make rounds until a condition holds."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        world.desk.tick()
        if condition():
            return
    raise AssertionError(f"not {what}: {world.desk.started}, {world.fault()}, {world.desk.journal.stages.of(world.job)}")
