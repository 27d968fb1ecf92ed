"""validation.json: what the validate stage found out, for people and programs. Called by that stage."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.contract.files import write_atomic
from handlers.child.progress import StageOutput
from handlers.validate.checks.reference import Reference

REPORT = "validation.json"


def write(folder: Path, reference: Reference, output: StageOutput, details: Mapping[str, dict[str, Any]]) -> None:
    """Write checks and figures as in the result, and a summary for each prompt. `details`: variant → what its check has beyond."""
    samples = reference.samples
    value = {
        "reference": reference.figures,
        "checked_on": output.figures.get("checked_on"),
        "bases": reference.bases,
        "logit_std": reference.logit_std,
        "prompts": [{"text": s.text, "ids": s.ids, "tokens": s.tokens, "continuation": s.continuation} for s in samples],
        "merged": output.figures.get("merged"),
        "artifacts": [check.model_dump(mode="json") | details.get(check.variant, {}) for check in output.checks],
        "warnings": output.warnings,
        "fallbacks": [fallback.model_dump() for fallback in output.fallbacks],
    }
    write_atomic(folder / REPORT, json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The JSON value with None for numbers that JSON doesn't have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
