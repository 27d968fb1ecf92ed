"""Copies of a real checkpoint, changed as trainers, rotations and broken copies change it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.watching.scan import Scanner, ScanRules

WRITTEN_LAST = "trainer_state.json"
TRAINERS_FILES = shutil.ignore_patterns("trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state*.pth")


def copy_of(source: Path, target: Path, *, step: int | None = None, weights: float | None = None) -> Path:
    """A whole copy at `target`. `step`: another global_step. `weights`: is added to the first bytes of the adapter's data."""
    shutil.copytree(source, target)
    if step is not None:
        set_state(target, global_step=step)
    if weights is not None:
        change_weights(target, weights)
    return target


def set_state(checkpoint: Path, **values: Any) -> None:
    """Rewrite keys of trainer_state.json in place."""
    file = checkpoint / WRITTEN_LAST
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}, indent=2))


def change_weights(checkpoint: Path, seed: float, *, state: bool = True) -> None:
    """Give the adapter other values of the same shapes; as with a trainer its state comes last, unless told otherwise."""
    from safetensors.torch import load_file, save_file

    file = checkpoint / "adapter_model.safetensors"
    save_file({name: tensor + seed for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    if state:
        os.utime(checkpoint / WRITTEN_LAST)


def in_trainers_order(source: Path) -> list[Path]:
    """The files of a checkpoint: the adapter first, the trainer's state last."""
    order = {"README.md": 0, "adapter_model.safetensors": 1, "adapter_config.json": 2, WRITTEN_LAST: 9}
    return sorted((path for path in source.iterdir() if path.is_file()), key=lambda path: (order.get(path.name, 5), path.name))


def plain_adapter(source: Path, target: Path) -> Path:
    """What `save_pretrained` of an adapter and a tokenizer writes: Trainer's checkpoint without all that is Trainer's own."""
    shutil.copytree(source, target, ignore=TRAINERS_FILES)
    return target


def open_jobs(journal: Journal) -> list[JobRow]:
    """The jobs that are not finished, in the order in which they were entered."""
    rows = [row for job in journal.jobs.open_ids() if (row := journal.jobs.get(job))]
    return sorted(rows, key=lambda row: (row.created, row.checkpoint.step, row.id))


def fail(error: OSError) -> None:
    raise error


def below(root: Path, **rules: Any) -> list[str]:
    """The checkpoints that a scan takes; keywords are its rules."""
    found = Scanner(ScanRules(**rules)).find(root, fail)
    return sorted(str(one.path.relative_to(root)) for one in found if not one.passed_over)


def passed_over(root: Path, **rules: Any) -> list[str]:
    """What a scan sees and does not take."""
    return sorted(str(one.path.relative_to(root)) for one in Scanner(ScanRules(**rules)).find(root, fail) if one.passed_over)
