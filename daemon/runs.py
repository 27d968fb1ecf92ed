"""What the later checkpoints of a run say: the view that a checkpoint's own files, written earlier, cannot have."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from daemon.checkpoint import Inspection
from daemon.layouts import TRAINER_STATE
from daemon.naming import CHECKPOINT_NAME, run_of, step_of
from daemon.select import Choice, choose
from daemon.settings import SelectSettings


def later_state(checkpoint: Path, step: int) -> dict[str, Any]:
    """The trainer state of the newest whole checkpoint beside this one with a greater step; {} where there is none."""
    with os.scandir(run_of(checkpoint)) as entries:
        beside = {entry.path: CHECKPOINT_NAME.fullmatch(entry.name) for entry in entries if entry.is_dir(follow_symlinks=False)}
    numbered = [(number, path) for path, match in beside.items() if match and (number := int(match[1])) > step]
    for number, path in sorted(numbered, reverse=True):
        state = _state(Path(path, TRAINER_STATE))
        if state.get("global_step") == number:
            return state
    return {}


def choice_for(inspection: Inspection, select: SelectSettings) -> tuple[Choice, dict[str, Any]]:
    """Whether `[select]` wants a complete checkpoint, and what a later one of its run says where the policy asks for that."""
    later = later_state(inspection.path, inspection.step) if select.policy == "best" else {}
    ending = step_of(inspection.path) is None
    return choose(inspection.step, inspection.metadata, select, later=later, ending=ending), later


def _state(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where it is none, or still being written."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return {}
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
