"""A program as `torch.export.save` wrote it, as a session of `feeding`. Used by the stage that made it, to compare it with the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.static_programs.description import Described, read
from handlers.static_programs.published.feeding import Feeds

State = dict[str, torch.Tensor]


class ProgramSession:
    """One program. The state is its cache, which is handed over and never changed."""

    def __init__(self, path: Path, role: str, described: Described | None = None) -> None:
        described = described or read(path.parent)
        self._graph, self._past = described.graph(role), described.past(role)
        bound = described.known.extra["bounds"][role]
        self.sizes = tuple(range(bound[0], bound[1] + 1))
        # The guards are those of the example's sizes, which the comparison goes beyond.
        self._run: Any = torch.export.load(path).module(check_guards=False)

    def start(self) -> State:
        """An empty cache."""
        return {name: torch.zeros(shape) for name, shape in self._past.items()}

    def run(self, state: State, feeds: Feeds) -> tuple[dict[str, np.ndarray], State]:
        """See `feeding`."""
        given = {**{name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}, **state}
        with torch.inference_mode():
            results = self._run(*(given[port.name] for port in self._graph.inputs))
        outputs = dict(zip((port.name for port in self._graph.outputs), results, strict=True))
        past = {name: outputs.pop(name.replace("past_key_values.", "present.", 1)) for name in self._past}
        return {name: tensor.numpy() for name, tensor in outputs.items()}, past
