"""A program of this folder, run by ExecuTorch's runtime. Needs executorch, torch and numpy. See `feeding.py` for what a session is.

A decoder keeps its cache in the program's own memory. The program is loaded once: where several texts go on by turns, the rows of the one
that waits are copied out of the cache and back into it.
"""

from __future__ import annotations

import importlib
import json
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch


def bindings() -> Any:
    """ExecuTorch's runtime with the operators of quantized tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is experimental, at every import
        importlib.import_module("executorch.kernels.quantized")
        return importlib.import_module("executorch.runtime")


class State:
    """A text in a decoder's cache."""

    def __init__(self) -> None:
        self.length = 0
        """Tokens so far."""
        self.rows: list[torch.Tensor] = []
        """Its rows of the cache, while another text has the cache."""


class Session:
    """One program. Takes and gives numpy arrays."""

    def __init__(self, path: str | Path, role: str, threads: int = 0) -> None:
        path = Path(path)
        known = json.loads((path.parent / "graphs.json").read_text(encoding="utf-8"))
        graph = next(entry for entry in known["graphs"] if entry["role"] == role)
        self._inputs = {entry["name"]: getattr(torch, entry["dtype"]) for entry in graph["inputs"]}
        self._outputs = [entry["name"] for entry in graph["outputs"]]
        least, most = known["extra"]["bounds"][role]
        self.sizes = tuple(range(least, most + 1))
        self._room = int(known["extra"]["context_length"])
        runtime = bindings()
        if threads:
            importlib.import_module("executorch.extension.pybindings.portable_lib")._unsafe_reset_threadpool(threads)
        self._program = runtime.Runtime.get().load_program(path)
        self._method = self._program.load_method("forward")
        names = known["extra"].get("caches", {}).get(role, [])
        self._caches: list[torch.Tensor] = [self._method._method.get_attribute(name) for name in names]
        self._owner: Any = None

    def start(self) -> State:
        """An empty cache."""
        return State()

    def run(self, state: State, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], State]:
        """See `feeding`. Raises ValueError for positions that do not follow each other and the text: the runtime would write elsewhere."""
        given = dict(feeds)
        if self._caches:
            places = given.pop("position_ids")[0]
            first, end = int(places[0]), int(places[0]) + len(places)
            if first > state.length or end > self._room or places.tolist() != list(range(first, end)):
                raise ValueError(f"positions {first} to {places[-1]} do not go on after {state.length} tokens, with room for {self._room}")
            given["start_pos"] = places[:1]
            self._bring(state)
            state.length = end
        inputs = [torch.from_numpy(np.array(given[name])).to(dtype) for name, dtype in self._inputs.items()]
        results = self._method.execute(inputs)
        return {name: tensor.numpy() for name, tensor in zip(self._outputs, results, strict=True)}, state

    def _bring(self, state: State) -> None:
        """Let the cache be that of a text."""
        before = self._owner and self._owner()
        if before is state:
            return
        if before is not None:
            before.rows = [cache[:, :, : before.length].clone() for cache in self._caches]
        self._owner = None  # where copying fails, the cache is nobody's
        for cache in self._caches:
            cache.zero_()
        for cache, rows in zip(self._caches, state.rows, strict=bool(state.rows)):
            cache[:, :, : rows.shape[2]] = rows
        state.rows = []
        self._owner = weakref.ref(state)
