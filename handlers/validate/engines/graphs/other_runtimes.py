"""Graphs of folders that another runtime runs, by objects in the manner of onnxruntime's sessions that take and give numpy arrays.

Used by the engines of such formats, each of which says how a file is opened.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from handlers.validate.engines.graphs.onnx_folder import LoadedGraph


class Value:
    """An array in the manner of onnxruntime's values."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        """As an array, which shares its memory."""
        return self.array

    def shape(self) -> list[int]:
        """Give its sizes."""
        return list(self.array.shape)


class OtherGraph(LoadedGraph):
    """One graph, or what stands for one; `_session` opens it."""

    def value(self, name: str, array: np.ndarray) -> Any:
        return Value(np.ascontiguousarray(array, dtype=self.dtype(name)))

    def passed(self, name: str, value: Any) -> Any:
        """As it is: the graphs of such a folder are of one dtype."""
        return value

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> dict[str, Any]:
        arrays = self.session.run(outputs, {name: feeds[name].array for name in self.inputs})
        return {name: Value(array) for name, array in zip(outputs, arrays, strict=True)}
