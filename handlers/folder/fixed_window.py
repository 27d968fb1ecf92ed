"""Runs a decoder's graph that has no cache, whatever of its sizes is fixed: rows one by one, tokens padded on the right.

Used by the export's own check, and usable by other programs that run such a graph. Free of torch. What is fixed is read from the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Window:
    """A session, as onnxruntime has them, of a graph that reads input_ids, attention_mask and perhaps position_ids, and gives logits."""

    def __init__(self, session: Any) -> None:
        self._session = session
        inputs = {value.name: value.shape for value in session.get_inputs()}
        self._names = tuple(inputs)
        rows, tokens = inputs["input_ids"]
        self.rows: int | None = rows if isinstance(rows, int) else None
        """Rows that the graph takes at once; None: any number."""
        self.tokens: int | None = tokens if isinstance(tokens, int) else None
        """Tokens that the graph takes; None: any number."""

    def logits(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Logits (rows, tokens, vocabulary) of all tokens; each argument is int64 (rows, tokens). ValueError beyond the window."""
        tokens = ids.shape[1]
        if self.tokens is not None and tokens > self.tokens:
            raise ValueError(f"the graph takes {self.tokens} tokens, not {tokens}")
        rows = self.rows or len(ids)
        answers = [self._run(*(array[start : start + rows] for array in (ids, mask, positions))) for start in range(0, len(ids), rows)]
        return np.concatenate(answers)[:, :tokens]

    def _run(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        feeds = {"input_ids": self._padded(ids), "attention_mask": self._padded(mask), "position_ids": self._padded(positions)}
        (logits,) = self._session.run(["logits"], {name: feeds[name] for name in self._names})
        answer: np.ndarray = logits
        return answer

    def _padded(self, array: np.ndarray) -> np.ndarray:
        missing = 0 if self.tokens is None else self.tokens - array.shape[1]
        return np.ascontiguousarray(np.pad(array, ((0, 0), (0, missing))))
