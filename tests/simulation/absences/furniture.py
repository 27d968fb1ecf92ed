"""What is in a world of absences: its base, texts, adapter, toolchain, roots, output, and the checkpoints that trainings save."""

from __future__ import annotations

import json
import random
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.toolchains.registry import IN_USE, MANIFEST, Manifest, Toolchains
from tests.simulation.absences.things import DANGLING, EMPTY, MISSING, PARTLY, UNREADABLE, WEIGHTS_OF_BASE, Thing
from tests.simulation.files import TRAINERS_OWN, make_checkpoint

BASE = "pico"
"""The name that all checkpoints give their base."""


@dataclass
class Save:
    """A checkpoint that a training saves, all at once, in one of the roots."""

    thing: Thing
    root: str
    at: float
    done: bool = False


def things(rng: random.Random, folder: Path) -> dict[str, Thing]:
    """All that moves, by name, but for checkpoints."""
    for name in ("models", "texts", "adapters", "watched", "exports", "state"):
        (folder / name).mkdir()
    aside, every = folder / "aside", (MISSING, UNREADABLE, DANGLING, EMPTY)
    named = [Thing("base", folder / "models" / "base", aside, (*every, PARTLY), base_files)]
    for name in ("prompts", "data"):
        if rng.random() < 0.5:
            named.append(Thing(name, folder / "texts" / f"{name}.txt", aside, (MISSING, UNREADABLE, DANGLING), _texts(name)))
    if rng.random() < 0.4:
        named.append(Thing("addition", folder / "adapters" / "style", aside, every, _adapter(rng)))
    if rng.random() < 0.4:
        named.append(Thing("toolchain", Toolchains(folder / "state").folder("gguf"), aside, (MISSING, UNREADABLE, DANGLING)))
    for number in range(rng.choice([1, 2])):
        named.append(Thing(f"root {number}", folder / "watched" / f"root-{number}", aside, (MISSING, UNREADABLE, EMPTY)))
        named[-1].path.mkdir()
    mounted = rng.random() < 0.6
    ways = (MISSING, UNREADABLE, EMPTY) if mounted else (UNREADABLE, DANGLING)
    named.append(Thing("output", folder / "exports" / "out", aside, ways, mounted=mounted))
    named[-1].path.mkdir()
    return {thing.name: thing for thing in named}


def saves(rng: random.Random, folder: Path, moving: dict[str, Thing]) -> list[Save]:
    """What trainings save, and when."""
    roots, found = [name for name in moving if name.startswith("root")], []
    for number in range(rng.choice([1, 2, 2])):
        root = rng.choice(roots)
        path = moving[root].path / f"run-{number}" / f"checkpoint-{10 * (number + 1)}"
        files = make_checkpoint(rng, 10 * (number + 1))
        thing = Thing(f"checkpoint {number}", path, folder / "aside", (MISSING, UNREADABLE), lambda generation, files=files: files)  # type: ignore[misc]
        found.append(Save(thing, root, 1000.0 + rng.choice([0.0, rng.uniform(0, 150)])))
    return found


def sections(rng: random.Random, folder: Path, moving: dict[str, Thing], patience: float) -> dict[str, Any]:
    """The configuration. One failure that counts ends a stage, so that none may be counted that is only an absence."""
    texts = {name: str(moving[name].path) for name in ("prompts", "data") if name in moving}
    added = [{"path": str(moving["addition"].path)}] if "addition" in moving else []
    return {
        "watch": {"roots": [thing.path for name, thing in moving.items() if name.startswith("root")], "settle_seconds": 3.0},
        "output": {"directory": moving["output"].path},
        "state": {"directory": folder / "state"},
        "base": {"map": {BASE: moving["base"].path}},
        "validate": texts,
        "merge": {"add": added},
        "export": {"variants": ["gguf-f16" if "toolchain" in moving else "pytorch"]},
        "limits": {
            "jobs": rng.choice([1, 2]), "threads": 4, "attempts": 1, "crashes": 1000, "retry_seconds": 0, "disk_reserve": 0,
            "memory_fraction": 1, "memory_reserve": 0, "away_hours": patience / 3600,
        },
    }  # fmt: skip


def base_files(generation: int) -> dict[str, bytes]:
    """A base of which two files say which one it is."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    mark = json.dumps({"generation": f"base {generation}"}).encode()
    weights = struct.pack("<Q", len(header)) + header + struct.pack("<f", generation)
    return {"config.json": mark, "tokenizer.json": mark, WEIGHTS_OF_BASE: weights}


def _texts(name: str) -> Any:
    line = {"prompts": "prompt {}\n", "data": '{{"text": "text {}"}}\n'}[name]
    return lambda generation: {"": line.format(generation).encode()}


def _adapter(rng: random.Random) -> Any:
    seed = rng.getrandbits(32)

    def files(generation: int) -> dict[str, bytes]:
        made = make_checkpoint(random.Random(seed + generation), 1)
        return {name: data for name, data in made.items() if name not in TRAINERS_OWN}

    return files


def install(folder: Path, moving: dict[str, Thing]) -> None:
    """Put the toolchain, if there is one, where it counts as installed."""
    if "toolchain" not in moving:
        return
    place = moving["toolchain"].path
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "python").symlink_to(sys.executable)
    (place / IN_USE).touch()
    manifest = Manifest(name="gguf", digest="d", python="3", installed="", seconds=1, size=1, packages={}, probe={})
    (place / MANIFEST).write_text(manifest.model_dump_json())
    Toolchains(folder / "state").offer(folder / "state" / "cache")
