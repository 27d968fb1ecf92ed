"""What a trainer recorded in trainer_state.json, as far as the daemon uses or shows it.

Called by `inspect` and by the selection. The step is needed; the rest is for display and for the choice of the best: what does not have
its type there is left out, since it says nothing about the weights. What is given out can be written into a journal and a report.
"""

from __future__ import annotations

import math
from typing import Any

from daemon.checkpoints.training_log import HISTORY, LOSSES
from daemon.contract.values import Json

MOST_STEPS = 10**12
"""More than any name of a checkpoint can say."""
_EVALUATIONS = 100
_TEXT = 4096


def step_in(state: Json, key: str = "global_step") -> int | None:
    """A number of steps; None where the state has none there that is one."""
    step = state.get(key)
    return step if type(step) is int and 0 <= step <= MOST_STEPS else None


def training_metadata(state: Json) -> dict[str, Any]:
    """What training recorded, each part only where it has its type: progress, best checkpoint, losses, the latest evaluation."""
    logged = state.get(HISTORY)
    history = [row for row in logged if isinstance(row, dict)] if isinstance(logged, list) else []
    losses = [[row["step"], row["loss"]] for row in history if _is_number(row.get("loss")) and _is_number(row.get("step"))]
    metadata: dict[str, Any] = {
        "epoch": _number(state, "epoch"),
        "max_steps": step_in(state, "max_steps"),
        "best_metric": _number(state, "best_metric"),
        "best_model_checkpoint": _text(state, "best_model_checkpoint"),
        "best_global_step": step_in(state, "best_global_step"),
        "loss_history": losses[-LOSSES:],
        "loss": losses[-1][1] if losses else None,
    }
    evaluations = [row for row in history if any(isinstance(key, str) and key.startswith("eval_") for key in row)]
    if evaluations:
        rows = [(key, value) for key, value in evaluations[-1].items() if key.startswith("eval_") and _is_text(key) and _is_number(value)]
        metadata["evaluation"] = dict(rows[:_EVALUATIONS]) or None
    return {key: value for key, value in metadata.items() if value is not None}


def _number(state: Json, key: str) -> int | float | None:
    value = state.get(key)
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a journal, a report and a chart can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300 and math.isfinite(value)


def _text(state: Json, key: str) -> str | None:
    value = state.get(key)
    return value if isinstance(value, str) and _is_text(value) else None


def _is_text(value: str) -> bool:
    """Whether it is short text that can be written as UTF-8: JSON can say halves of surrogate pairs."""
    return len(value) <= _TEXT and not any("\ud800" <= character <= "\udfff" for character in value)
