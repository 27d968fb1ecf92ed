"""Which checkpoints `[select]` wants: rules over what the trainer's own state says, and what later checkpoints of the run say.

Called by the intake. Nothing is guessed: a metric without a direction names no best checkpoint, so that only
`best_model_checkpoint` and `best_global_step`, which the trainer writes when it compares, count as best. A checkpoint's own files
were written before the later ones, so that under `best` the newest state of the run is read too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.checkpoints.files import TRAINER_STATE
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.names import CHECKPOINT_NAME, run_of
from daemon.checkpoints.trainer_state import read, step_in, training_metadata
from daemon.contract.light import dataclass
from daemon.contract.values import Json

if TYPE_CHECKING:
    from daemon.config.known import AnySelect


@dataclass(frozen=True)
class Selection:
    """Whether a checkpoint is wanted, and why (not), for the log."""

    wanted: bool
    reason: str


def best_step(state: Json) -> int | None:
    """The step that a trainer's state names as the best so far; None where it names none."""
    leaf = re.split(r"[/\\]", str(state.get("best_model_checkpoint") or "").rstrip("/\\"))[-1]
    if match := CHECKPOINT_NAME.fullmatch(leaf):
        return int(match[1])
    return step_in(state, "best_global_step")


def is_final(step: int, state: Json) -> bool:
    """Whether a checkpoint is the last one of its training: it has made all the steps that it was to make."""
    last = step_in(state, "max_steps")
    return last is not None and 0 < last == step


def choose(step: int, state: Json, select: AnySelect, *, later: Json | None = None, ending: bool = False) -> Selection:
    """Whether the checkpoint of `step` is wanted.

    `state`: what its own trainer state says. `later`: what the newest checkpoint of its run says, which knows more.
    `ending`: its directory has no number, since it is what was written when training ended.
    """
    if select.policy in ("all", "latest"):
        return Selection(True, f'select.policy = "{select.policy}"')
    if select.final and (ending or is_final(step, state)):
        return Selection(True, f"step {step} is the last one of its training")
    if select.policy == "every":
        if step % select.every == 0:
            return Selection(True, f"select.every = {select.every}")
        return Selection(False, f"select.every = {select.every} does not divide step {step}")
    named = [best for best in (best_step(state), best_step(later or {})) if best is not None]
    if step in named:
        return Selection(True, "the trainer names it as its best")
    if named:
        return Selection(False, f"the trainer's best is step {named[-1]}")
    return Selection(False, "the trainer names no best checkpoint; let it load_best_model_at_end or set metric_for_best_model")


def later_state(checkpoint: Path, step: int) -> Json:
    """The trainer state of the newest whole checkpoint beside this one with a greater step; {} where there is none."""
    with os.scandir(run_of(checkpoint)) as entries:
        beside = {entry.path: CHECKPOINT_NAME.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)}
    numbered = [(number, path) for path, match in beside.items() if match and (number := int(match[1])) > step]
    for number, path in sorted(numbered, reverse=True):
        state = _state(Path(path, TRAINER_STATE))
        if step_in(state) == number:
            return training_metadata(state)
    return {}


def choice_for(inspection: Inspection, select: AnySelect) -> tuple[Selection, Json]:
    """Whether `[select]` wants a complete checkpoint, and what a later one of its run says where the policy asks for that."""
    later = later_state(inspection.path, inspection.step) if select.policy == "best" else {}
    return choose(inspection.step, inspection.metadata, select, later=later, ending=inspection.ending), later


def _state(path: Path) -> Json:
    """The object in a JSON file; {} where it is none, or still being written."""
    try:
        if path.is_symlink():
            return {}
        value = read(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
