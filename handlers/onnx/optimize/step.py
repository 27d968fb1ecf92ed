"""The types of an optimization step: the step, its input, and its report.

The table of all steps is in `steps`; `run` applies them. Free of torch and onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import onnx_ir as ir

from daemon.contract.values import Json

Level = Literal["none", "basic", "extended", "all"]
RANK: Mapping[str, int] = {"none": 0, "basic": 1, "extended": 2, "all": 3}


class NotForThisError(Exception):
    """A step does not apply to this kind of model; the message says why."""


@dataclass(frozen=True)
class StepInput:
    """The graph that a step is to change, and what is known of its model."""

    model: ir.Model
    """The step may change it; large weights are in files and are read when needed."""
    config: Json
    """config.json."""
    scratch: Path
    """An empty folder for whatever the step writes."""
    threads: int = 1
    idle: frozenset[str] = frozenset()
    """Names of steps that were tried on this very graph and changed nothing."""


@dataclass(frozen=True)
class Step:
    """One step: changes the input's model in place, or returns another model instead."""

    name: str
    level: Level
    """The lowest level that takes it."""
    apply: Callable[[StepInput], ir.Model]
    buffers: bool = False
    """The past and the present of its graph may share their buffers, which is compared too."""


@dataclass
class StepReport:
    """The result of one step on one graph. Milliseconds are medians by what was run: "prefill", "decode"."""

    graph: str
    name: str
    kept: bool = False
    good: bool = False
    """The graph was equal and not slower, whether it was kept or only tried."""
    reason: str = ""
    nodes_before: int = 0
    nodes_after: int | None = None
    bytes_before: int = 0
    bytes_after: int | None = None
    """Of the whole folder, weights included."""
    ms_before: dict[str, float] = field(default_factory=dict)
    ms_after: dict[str, float] = field(default_factory=dict)
    error: float | None = None
    """Largest difference from the graph before, relative to the largest value of an output."""
    fused: dict[str, int] = field(default_factory=dict)
    """Operators of onnxruntime's own that the step brought in."""
    seconds: float = 0.0
    """Duration of the step and of its checks."""

    @property
    def figures(self) -> dict[str, object]:
        """For the stage's result; what was not measured is left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, {}) and name != "good"}
