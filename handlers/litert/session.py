"""A model of this folder, run by LiteRT's interpreter. Needs ai-edge-litert and numpy. See `feeding.py` for what a session is.

A file holds one model with several signatures: `prefill` takes many tokens and `decode` takes one, `encode…` takes a whole text. They share
their weights. The cache of a decoder goes in and comes out again, so that several texts can go on by turns.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

IDS = "input_ids"
_LAYER = re.compile(r"_(\d+)_(?:(encoder|decoder)_)?(key|value)$")
State = dict[str, np.ndarray]


def in_file(name: str) -> str:
    """What a signature calls an input or output: its names have no dots."""
    return name.replace(".", "_")


def outside(name: str) -> str:
    """The name by which graphs.json and other runtimes know what a signature calls `name`."""
    return _LAYER.sub(lambda match: "." + ".".join(filter(None, match.groups())), name)


class Session:
    """One model. Takes and gives numpy arrays. `threads`: 0 leaves their number to LiteRT."""

    def __init__(self, path: str | Path, role: str = "model", threads: int = 0) -> None:
        runtime = importlib.import_module("ai_edge_litert.interpreter")
        self._interpreter = runtime.Interpreter(model_path=str(path), num_threads=threads or None)
        runners = {name: self._interpreter.get_signature_runner(name) for name in self._interpreter.get_signature_list()}
        self._runners = {int(runner.get_input_details()[IDS]["shape"][1]): runner for runner in runners.values()}
        self.sizes = tuple(sorted(self._runners))
        details = self._runners[self.sizes[0]].get_input_details()
        given = self._runners[self.sizes[0]].get_output_details()
        self._past = {name: tuple(int(size) for size in detail["shape"]) for name, detail in details.items() if _present(name) in given}

    def start(self) -> State:
        """An empty cache."""
        return {name: np.zeros(shape, np.float32) for name, shape in self._past.items()}

    def run(self, state: State, feeds: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], State]:
        """See `feeding`; the state is not changed."""
        runner = self._runners[int(np.shape(feeds[IDS])[1])]
        outputs = runner(**{in_file(name): np.ascontiguousarray(array) for name, array in feeds.items()}, **state)
        past = {name: outputs.pop(_present(name)) for name in self._past}
        return {outside(name): array for name, array in outputs.items()}, past


def _present(name: str) -> str:
    return name.replace("past_key_values_", "present_", 1)
