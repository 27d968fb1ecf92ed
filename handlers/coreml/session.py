"""A package of a folder as a session of `handlers.static_programs.published.feeding`: run by Core ML on a Mac, evaluated elsewhere.

Used by the engine and by the stages that try what they made.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from handlers.coreml import library
from handlers.coreml.converting import conversion
from handlers.coreml.evaluation import package
from handlers.coreml.evaluation.evaluator import Evaluator
from handlers.graphs.graphset import Graph

IDS = "input_ids"
_CACHE = re.compile(r"present_(\d+)_(encoder|decoder)_(key|value)")
Feeds = Mapping[str, np.ndarray]


def opened(path: Path, graph: Graph) -> Session:
    """The session of a package that graphs.json describes as `graph`, by what there is on this machine."""
    return AppleSession(path, graph) if sys.platform == "darwin" else EvaluatedSession(path, graph)


class Session:
    """What both have: the sizes that a package takes, and the names by which the rest of the world knows its inputs and outputs."""

    def __init__(self, path: Path, graph: Graph) -> None:
        self._program = package.read(path)
        self.sizes = tuple(sorted({shape[1] for shape in self._program.shapes[IDS]}))
        self._outside = {conversion.legal(port.name): _dotted(port.name) for port in graph.outputs}

    def start(self) -> Any:
        """See `feeding`."""
        raise NotImplementedError

    def run(self, state: Any, feeds: Feeds) -> tuple[dict[str, np.ndarray], Any]:
        """See `feeding`."""
        raise NotImplementedError


class EvaluatedSession(Session):
    """Evaluated operator by operator. The state is handed over and never changed."""

    def __init__(self, path: Path, graph: Graph) -> None:
        super().__init__(path, graph)
        self._evaluator = Evaluator(self._program)

    def start(self) -> Any:
        return self._evaluator.start()

    def run(self, state: Any, feeds: Feeds) -> tuple[dict[str, np.ndarray], Any]:
        outputs, state = self._evaluator.run(state, {conversion.legal(name): np.asarray(array) for name, array in feeds.items()})
        return {self._outside[name]: array for name, array in outputs.items()}, state


class AppleSession(Session):
    """Run by Core ML, on the CPU alone, so that verdicts do not depend on what else uses the others. The state is an MLState, which
    changes in place."""

    def __init__(self, path: Path, graph: Graph) -> None:
        super().__init__(path, graph)
        ct = library.coremltools()
        self._model = ct.models.MLModel(str(path), compute_units=ct.ComputeUnit.CPU_ONLY)

    def start(self) -> Any:
        return self._model.make_state() if self._program.states else None

    def run(self, state: Any, feeds: Feeds) -> tuple[dict[str, np.ndarray], Any]:
        given = {conversion.legal(name): np.ascontiguousarray(array, _dtype(array)) for name, array in feeds.items()}
        answers = self._model.predict(given) if state is None else self._model.predict(given, state)
        return {self._outside[name]: np.asarray(array, np.float32) for name, array in answers.items()}, state


def _dotted(name: str) -> str:
    """The name that keys and values have outside of a package, whose own names have no dots."""
    match = _CACHE.fullmatch(name)
    return name if match is None else f"present.{match[1]}.{match[2]}.{match[3]}"


def _dtype(array: np.ndarray) -> type[np.generic]:
    return np.int32 if np.issubdtype(np.asarray(array).dtype, np.integer) else np.float32
