"""Compares the graph on disk with torch: the stage's own check, before any other stage reads the file.

Called by the families. It runs a handful of tokens; validation judges the model on text. It has torch's outputs as arrays, so the
model in torch may be released before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnxruntime

from handlers.graphs.sessions import MappedWeights, open_session
from handlers.graphs.signature import Signature

TOLERANCE = 1e-3
"""Largest error allowed, in units of the largest value of the reference."""


class GraphMismatchError(Exception):
    """The graph is malformed, has other inputs than it should, or computes something else than torch."""


class Session(Protocol):
    """What runs a graph: onnxruntime's session, or what takes and gives the same."""

    def get_outputs(self) -> Sequence[Any]:
        """Return the outputs, each with its `name`, in order."""

    def run(self, names: Any, feeds: Any) -> Any:
        """Return the outputs asked for, all if `names` is None, as arrays."""


Opener = Callable[[Path, Signature, int], Session]
"""Opens the graph of a path with a signature, and a number of threads."""


def open_graph(path: Path, signature: Signature, threads: int) -> onnxruntime.InferenceSession:
    """Return a session of the graph, once it is known to load and to have the signature's names and axes; else GraphMismatchError."""
    try:
        session = open_session(path, threads, MappedWeights(releasing=True))
    except RuntimeError as error:
        raise GraphMismatchError(f"onnxruntime does not take the graph: {str(error).strip().splitlines()[0]}") from None
    _check_names(session, signature)
    return session


def _check_names(session: onnxruntime.InferenceSession, signature: Signature) -> None:
    for kind, ports, wanted in (
        ("inputs", session.get_inputs(), signature.inputs),
        ("outputs", session.get_outputs(), signature.outputs),
    ):
        names = tuple(value.name for value in ports)
        if names != wanted:
            lost, foreign = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
            raise GraphMismatchError(f"the graph's {kind} differ from those asked for: missing {lost}, unexpected {foreign}")
        for value in ports:
            for axis, name in signature.axes[value.name].items():
                if value.shape[axis] != name:
                    raise GraphMismatchError(f"axis {axis} of {value.name} is {value.shape[axis]}, not {name}")


def largest_relative(output: np.ndarray, wanted: np.ndarray, what: str) -> float:
    """Largest |output − wanted| over the largest |wanted|; GraphMismatchError above TOLERANCE, or when the shapes differ."""
    if output.shape != wanted.shape:
        raise GraphMismatchError(f"the graph's {what} have the shape {output.shape}, torch's {wanted.shape}")
    if not np.isfinite(output).all():
        raise GraphMismatchError(f"the graph's {what} hold values that are not finite")
    largest = float(np.abs(output - wanted).max(initial=0.0) / max(float(np.abs(wanted).max(initial=0.0)), 1e-9))
    if largest > TOLERANCE:
        raise GraphMismatchError(f"the graph's {what} differ from torch's by {largest:.2g} of the largest value, more than {TOLERANCE:g}")
    return largest
