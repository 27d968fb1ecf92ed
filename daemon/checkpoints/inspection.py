"""Is this directory a checkpoint, is it complete, and what is in it?

Completeness is structure: all files that the layout (`daemon.checkpoints.layouts`) requires must be there and complete. Called by the
watcher on quiet directories, by `ckptd export` and by `ckptd explain`. Reads headers and small JSON files only.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from daemon.checkpoints.completeness import Weights, refusal_by_config
from daemon.checkpoints.files import Look, look_at, no_file
from daemon.checkpoints.layouts import ACCELERATE, is_of_trainer, recognize
from daemon.checkpoints.models.base_models import UNNAMED
from daemon.checkpoints.names import ADAPTERS, REFERENCE, counts_epochs, is_checkpoint_name, newest_step_beside, run_of, step_of
from daemon.checkpoints.pieces import pieces_to_come
from daemon.checkpoints.trainer_state import claims_of, training_metadata
from daemon.checkpoints.unsupported import refuse_unconfigured
from daemon.contract.faults.errors import Fault
from daemon.contract.light import dataclass
from daemon.contract.sharded.dcp import METADATA
from daemon.contract.values import Json

CONFIG = "config.json"
NO_ADAPTER_YET = "adapter_model.safetensors is not there yet"


@dataclass(frozen=True)
class Inspection:
    """What a look into a directory found."""

    path: Path
    layout: str | None = None
    step: int = 0
    missing: tuple[str, ...] = ()
    """Why it is not complete, as sentences; empty when it is complete."""
    claims_done: bool = False
    """The trainer wrote its last file: what is missing now will not appear any more."""
    method: str = ""
    base_name: str | None = None
    base_revision: str | None = None
    metadata: Json = field(default_factory=dict)
    patience_seconds: float = 0.0
    """Seconds without a change, beyond the settle time, before the watcher may take it: used where no last file shows that it is done."""
    refusal: Fault | None = None
    """Why a complete one is not exported as it is, and what to do."""
    borrowed: tuple[Path, ...] = ()
    """Files of the run's directory that its export needs and that it lacks itself."""
    ending: bool = False
    """No name in it or of it has a step: it is what was written when training ended."""
    lacks_config: bool = False
    """It is a model's training state, and neither it nor its run has the model's config.json."""
    left_out: tuple[str, ...] = ()
    """Its folders with other adapters, but for those that its own one was trained against."""

    @property
    def complete(self) -> bool:
        """Whether all that the layout requires is there and complete."""
        return self.layout is not None and not self.missing


def inspect(path: Path) -> Inspection:
    """Look at one directory. Raises OSError when it is gone or can't be read."""
    look = look_at(path)
    named = _named_adapters(look)
    layout = recognize(look)
    patience = layout.patience(look) if layout else 0.0
    step = step_of(path)
    if layout is None:
        return Inspection(path, step=step or 0, ending=step is None, missing=(_nothing_yet(path, named),))
    by_name = None if counts_epochs(path) else step
    required = layout.last_file is not None or ((layout.refusal is not None or layout.in_pieces) and is_of_trainer(look))
    weights = layout.weights(look)
    missing = [problem for check in layout.checks for problem in check(look)] + weights.missing
    state, recorded, claims = claims_of(look, by_name, missing, required=required)
    steps = [number for number in (recorded, weights.step, step) if number is not None]
    return Inspection(
        path,
        layout.name,
        steps[0] if steps else newest_step_beside(path),
        tuple(missing),
        claims,
        weights.method,
        weights.base_name,
        weights.base_revision,
        {**weights.metadata, **training_metadata(state)} if state else weights.metadata,
        patience_seconds=patience,
        refusal=layout.refusal(path) if layout.refusal else weights.refusal,
        borrowed=weights.borrowed,
        ending=step is None and weights.step is None,
        lacks_config=layout.name == ACCELERATE and weights.method == "full" and not _has_config(look, weights),
        left_out=tuple(name for name in named if not name.startswith(REFERENCE)),
    )


def _has_config(look: Look, weights: Weights) -> bool:
    return CONFIG in look.names or any(path.name == CONFIG for path in weights.borrowed)


def why_unconfigured(inspection: Inspection, mapped: Mapping[str, Path]) -> Fault | None:
    """Why nothing says which model a complete training state is of; None where its run, or `base.map`, does."""
    if not inspection.lacks_config or UNNAMED in mapped:
        return None
    return refuse_unconfigured(inspection.path, run_of(inspection.path))


def checkpoint_around(path: Path) -> Path | None:
    """The checkpoint in whose directory, or in a folder of whose, an absolute `path` lies; None where it lies in none.

    Raises OSError when a folder around it can't be read.
    """
    for folder in path.parents:
        if is_checkpoint_name(folder.name):
            return folder
    above = (folder for folder in list(path.parents)[:2] if inspect(folder).layout is not None)
    return next(above, None)


def _nothing_yet(path: Path, named: Sequence[str]) -> str:
    """What is missing of a directory without weights; where pieces are described and none is there, which ones."""
    if files := pieces_to_come(path):
        some = ", ".join(files[:4]) + (f" and {len(files) - 4:,} more" if len(files) > 4 else "")
        return f"the pieces that its {METADATA} names are not there yet: {some}"
    wrong = no_file(path, *ADAPTERS, "model.safetensors", "pytorch_model.bin")
    if wrong is None and named:
        return (
            f"no adapter and no model weights in it itself, but in {', '.join(f'{name}/' for name in named)}, where PEFT writes an adapter"
            f" that is not named default: name it default in the training, or run `ckptd export {shlex.quote(str(path / named[0]))}` before"
            " the trainer deletes it"
        )
    return "no adapter and no model weights in it yet" + (f": {wrong}" if wrong else "")


def _named_adapters(look: Look) -> list[str]:
    """Return the folders of a `checkpoint-N` that hold an adapter, last those that others are trained against; TRL's `ref` is none."""
    if not is_checkpoint_name(look.path.name):
        return []
    ordered = sorted(look.folders - {REFERENCE}, key=lambda name: (name.startswith(REFERENCE), name))
    return [name for name in ordered if any(os.path.isfile(look.path / name / file) for file in ADAPTERS)]


def refusal_of(path: Path) -> Fault | None:
    """Why a directory is not exported as it is, None where it is: without reading the headers of plain weights. Raises OSError."""
    look = look_at(path)
    layout = recognize(look)
    if layout is None:
        return None
    if layout.refusal:
        return layout.refusal(path)
    return layout.weights(look).refusal if layout.in_pieces else refusal_by_config(look)


def is_run_alone(inspection: Inspection) -> bool:
    """Whether what is not complete is a run's own directory, with checkpoints and an adapter's configuration in it and no weights.

    axolotl writes that configuration when training begins. Weights may come when it ends; until then, or without them, nothing is missing.
    Raises OSError when it is gone.
    """
    if inspection.missing != (NO_ADAPTER_YET,) or run_of(inspection.path) != inspection.path:
        return False
    with os.scandir(inspection.path) as entries:
        return any(is_checkpoint_name(entry.name) and entry.is_dir(follow_symlinks=False) for entry in entries)
