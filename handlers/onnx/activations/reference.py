"""The activations that torch computes, and the error of a graph with activations against them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemon.contract.jobs.messages import StageContext
from handlers.families.base import Tracing, load_model, release
from handlers.graphs.comparison import TOLERANCE, GraphMismatchError
from handlers.graphs.graphset import GraphSet
from handlers.graphs.sessions import open_session
from handlers.models.tasks import BY_NAME
from handlers.onnx.activations import calls as activations_calls
from handlers.onnx.activations.calls import Call, calls_of
from handlers.onnx.activations.capture import Site, sites, values
from handlers.onnx.options import OnnxOptions


@dataclass(frozen=True)
class Torchs:
    """The activations that torch computed, as arrays that stay when the model is released."""

    sites: tuple[Site, ...]
    layers: int
    calls: tuple[Call, ...]
    answers: list[dict[str, np.ndarray]]
    """Values of the sites by name, over all tokens of each call at once."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the extra outputs, in their order in the graph."""
        return tuple(site.name for site in self.sites)


def ask_torch(folder: Path, graphs: GraphSet, context: StageContext) -> Torchs:
    """Load the merged model, run it over a few calls and release it; Permanent if it can't give the activations asked for."""
    model = load_model(folder, BY_NAME[graphs.task], Tracing("eager"))
    wanted, layers = sites(model, folder, context.work.options(OnnxOptions))
    made = calls_of(folder, graphs)
    answers = values(model, wanted, made, folder)
    release(model)
    return Torchs(wanted, layers, made, answers)


def compare(path: Path, torchs: Torchs, threads: int) -> dict[str, float]:
    """Output → largest relative error against torch; GraphMismatchError above the tolerance."""
    errors = activations_calls.errors(open_session(path, threads), torchs.calls, torchs.answers, torchs.names)
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > TOLERANCE:
        raise GraphMismatchError(f"{worst} differs from torch's by {errors[worst]:.2g} of its largest value, more than {TOLERANCE:g}")
    return errors
