"""Ranges of a graph's activations, measured while texts run through it.

Called by the stages `onnx-int8-static`, for what its products multiply, and `onnx-fp16`, for what would leave that type's range. The
values of interest become further outputs of the fp32 graph, so nothing is exported or quantized for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from handlers.folder.playback import GraphRun
from handlers.graphs.graph_file import fresh_folder
from handlers.graphs.sessions import open_session

OUTLIERS = 1e-4
"""Share of an activation's elements that the narrower of both ranges leaves out, half of them at each end."""
MASKED = 1e30
"""What is beyond this is a mask, not a number."""
_SAMPLES = 1 << 14
"""Elements of one call that are kept for the narrower range, besides its extremes."""


@dataclass
class Activation:
    """What was seen of one value."""

    extremes_only: bool = False
    """Keep no sample: `percentile` gives the extremes too."""
    lowest: float = 0.0
    highest: float = 0.0
    _seen: list[np.ndarray] = field(default_factory=list)
    _weights: list[np.ndarray] = field(default_factory=list)

    def see(self, array: np.ndarray) -> None:
        """Take a call's values in; what is not finite, or a mask, says nothing."""
        flat = array.ravel()
        flat = flat[np.isfinite(flat) & (np.abs(flat) < MASKED)]
        if not flat.size:
            return
        self.lowest, self.highest = min(self.lowest, float(flat.min())), max(self.highest, float(flat.max()))
        if self.extremes_only:
            return
        # The extremes are kept one by one, those between them in a sample that stands for all.
        ends = min(flat.size // 2, _SAMPLES // 8)
        ordered = np.sort(flat)
        middle = ordered[ends : flat.size - ends]
        step = max(1, middle.size // _SAMPLES)
        parts = (ordered[:ends], middle[::step], ordered[flat.size - ends :])
        self._seen += [part.copy() for part in parts]
        self._weights += [np.full(part.size, weight, np.float32) for part, weight in zip(parts, (1, step, 1), strict=True)]

    def with_all_of(self, other: Activation) -> Activation:
        """What both saw."""
        lowest, highest = min(self.lowest, other.lowest), max(self.highest, other.highest)
        return Activation(
            self.extremes_only and other.extremes_only, lowest, highest, self._seen + other._seen, self._weights + other._weights
        )

    def extremes(self) -> tuple[float, float]:
        """Smallest and largest value, 0 included."""
        return self.lowest, self.highest

    def percentile(self, outliers: float = OUTLIERS) -> tuple[float, float]:
        """The range without its outliers, 0 included."""
        if not self._seen:
            return self.extremes()
        values, weights = np.concatenate(self._seen), np.concatenate(self._weights)
        order = np.argsort(values)
        share = np.cumsum(weights[order]) / weights.sum()
        low = values[order][np.searchsorted(share, outliers / 2)]
        high = values[order][min(int(np.searchsorted(share, 1 - outliers / 2)), values.size - 1)]
        return min(0.0, float(low)), max(0.0, float(high))


def watch(
    path: Path, names: Iterable[str], calls: Sequence[GraphRun], scratch: Path, *, threads: int, extremes_only: bool = False
) -> dict[str, Activation]:
    """What the named values of a graph take on in these calls; values that only exist in a subgraph are left out.

    `scratch` is a folder for the graph with further outputs; it is emptied.
    """
    model = ir.load(path)
    values = {value.name: value for node in model.graph for value in node.outputs} | {value.name: value for value in model.graph.inputs}
    wanted = [values[name] for name in dict.fromkeys(names) if name in values]
    computed = [value for value in wanted if not value.is_graph_input()]
    given = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(value for value in computed if value.name not in given)
    target = fresh_folder(scratch) / path.name
    ir.save(model, target, external_data=f"{path.name}.data")  # whichever file its weights lie in now
    session = open_session(target, threads)
    seen = {value.name or "": Activation(extremes_only) for value in wanted}
    outputs = [value.name or "" for value in computed]
    for call in calls:
        arrays = dict(zip(outputs, session.run(outputs, call.feeds), strict=True)) if outputs else {}
        for name, activation in seen.items():
            activation.see(arrays[name] if name in arrays else call.feeds[name])
    del session
    fresh_folder(scratch)
    return seen
