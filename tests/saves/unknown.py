"""Loops that no page names: the directories, names, files and ways of writing of a training that somebody wrote, drawn at random.

A loop saves some steps and, perhaps, a model at the end. What it writes is known, so that a test can say what must become of it.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import save

from tests.saves.saves import ADAPTER, CONFIG, LORA, MODEL, TOKENIZER

STEP_NAMES = (
    "ckpt_{:05d}", "ckpt-{}", "step={}", "step_{:06d}", "step{}", "steps_{}", "it{}", "it_{:04d}", "iter{}", "iteration-{}", "update_{}",
    "global_step{}", "checkpoint_{}", "checkpoint-{}", "model-{}",
    "model_{:06d}", "weights_{}", "save_{}",
    "model_step_{}", "ckpt_step{}", "checkpoint-step-{}", "epoch0_step{}", "epoch_0-step_{}", "step_{}_adapter", "chkpt{}", "saved_step_{}",
)  # fmt: skip
"""With the number of steps of the training."""
RUN_NAMES = ("batch-{}", "adapter_{}", "lora-{}", "{}", "v{}", "exp{}", "seed_{}")
"""So people call different runs too: each of them counts as one."""
PARTS = ("", "", "", "actor", "policy", "model", "adapter", "lora", "hf")
"""Folder of a step in which the model lies."""
HOLDERS = ("", "", "checkpoints", "ckpts", "out/saved")
"""Folder of a run in which its steps lie."""
STATES = ((), ("optimizer.pt",), ("optimizer.pt", "scheduler.pt"), ("training_state.pt",), ("state.json",), ("optim.bin", "rng.pt"))
ENDINGS = ("", "", "final", "final_model", "best", "last", ".")
"""Where the model is saved once more at the end; the last of them is the run's own directory."""
WRITERS = ("in place", "state first", "configuration last", "files renamed", "directory .tmp", "directory tmp_", "directory hidden")


@dataclass(frozen=True)
class Operation:
    """A file that is written, or a directory that is renamed to `path`."""

    path: str
    content: bytes = b""
    renamed: str = ""


@dataclass
class Loop:
    """What one loop does, in its order."""

    seed: int
    operations: list[Operation] = field(default_factory=list)
    whole_after: dict[str, int] = field(default_factory=dict)
    """Checkpoint → number of operations after which its weights and their configuration are there."""
    steps: dict[str, int] = field(default_factory=dict)
    """Checkpoint → its step; those of the end have none."""
    ending: str = ""
    """The checkpoint of the end, where its name and place say that it is one."""
    said: str = ""
    """What was drawn, for a failure."""


def draw(seed: int) -> Loop:
    """The loop of a seed."""
    rng, loop = random.Random(seed), Loop(seed)
    holder, pattern, part = rng.choice(HOLDERS), rng.choice(STEP_NAMES * 4 + RUN_NAMES), rng.choice(PARTS)
    if pattern == "checkpoint-{}":
        part = ""  # nothing below a directory of this name is looked for
    adapter, state, writer, ending = rng.random() < 0.6, rng.choice(STATES), rng.choice(WRITERS), rng.choice(ENDINGS)
    loop.said = f"{holder}/{pattern}/{part}, {'adapter' if adapter else 'model'}, {state}, {writer}, at the end: {ending!r}"
    if not adapter and not state and not part:
        state = ("optimizer.pt",)  # a whole model alone is a base, as far as anybody can tell
    for step in sorted(rng.sample(range(1, 40), rng.randint(2, 4))):
        place = "/".join(filter(None, (holder, pattern.format(step * 10), part)))
        _checkpoint(loop, place, step, _files(rng, step, adapter, state), writer, part)
        if pattern in STEP_NAMES:
            loop.steps[place] = step * 10
    if ending:
        place = "/".join(filter(None, (holder, ending))) if ending != "." else "."
        _checkpoint(loop, place, 99, _files(rng, 99, adapter, ()), "in place", "")
        if ending != "best" and not (ending == "." and holder):
            loop.ending = place
    return loop


def _files(rng: random.Random, step: int, adapter: bool, state: tuple[str, ...]) -> list[tuple[str, bytes]]:
    """Name and content: the weights first, then their configuration, what lies beside them, and the training's state."""
    tensors = {name: np.full(shape, step, np.float32) for name, shape in (LORA if adapter else MODEL).items()}
    config = ("adapter_config.json", ADAPTER.encode()) if adapter else ("config.json", CONFIG.encode())
    weights = [("adapter_model.safetensors" if adapter else "model.safetensors", save(tensors))]
    if not adapter and rng.random() < 0.4:
        names = list(tensors)
        files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        halves = {files[0]: names[:1], files[1]: names[1:]}
        weights = [(file, save({name: tensors[name] for name in held})) for file, held in halves.items()]
        mapped = {name: file for file, held in halves.items() for name in held}
        weights.append(("model.safetensors.index.json", json.dumps({"weight_map": mapped}).encode()))
    beside = list(TOKENIZER.items()) if rng.random() < 0.5 else []
    states = [(name, json.dumps({"step": step}).encode() if name.endswith(".json") else bytes(200)) for name in state]
    return [*weights, config, *beside, *states]


def _checkpoint(loop: Loop, place: str, step: int, files: list[tuple[str, bytes]], writer: str, part: str) -> None:
    """Add what writes one checkpoint."""
    needed = {name for name, _ in files if name.startswith(("adapter", "model")) or name == "config.json"}
    config = next(file for file in files if file[0] in ("adapter_config.json", "config.json"))
    if writer == "state first":
        files = sorted(files, key=lambda file: file[0] in needed)
    elif writer == "configuration last":
        files = [*(file for file in files if file != config), config]
    target = place.removesuffix(f"/{part}") if part else place
    above, _, name = target.rpartition("/")
    written = {"directory .tmp": f"{name}.tmp", "directory tmp_": f"tmp_{name}", "directory hidden": f".{name}.partial"}.get(writer, name)
    folder = "/".join(filter(None, (above, written)))
    inner = f"{folder}/{part}" if part else folder
    for file, content in files:
        if writer == "files renamed":
            loop.operations.append(Operation(f"{inner}/{file}.tmp", content))
            loop.operations.append(Operation(f"{inner}/{file}", renamed=f"{inner}/{file}.tmp"))
        else:
            loop.operations += [Operation(f"{inner}/{file}", content[: len(content) // 2]), Operation(f"{inner}/{file}", content)]
        needed.discard(file)
        if not needed and place not in loop.whole_after and written == name:
            loop.whole_after[place] = len(loop.operations)
    if written != name:
        loop.operations.append(Operation(target, renamed=folder))
        loop.whole_after[place] = len(loop.operations)
