"""The sizes that engines are built for: for each graph one or more profiles: the least, the optimal and the largest shape of each input.

Called by the stages of the bundle. A decoder has two profiles. *prefill* takes prompts into an empty cache: the cache's inputs have a
length of 0, which TensorRT allows. *decode* takes a few tokens on top of a cache that is not empty. The mask is as long as cache and new
tokens together at each of the three points; the builder does not check that, so `prove` runs the graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.values import Json
from handlers.graphs.graphset import Graph, GraphSet, Port
from handlers.graphs.signature import BATCH, PAST, SEQUENCE, TOTAL
from handlers.tensorrt.box import session
from handlers.tensorrt.options import TensorRtOptions

FILE = "profiles.json"
SOURCE = "encoder_sequence"
CHUNK = 16
"""Tokens that can be added to a cache at once."""
POINTS = ("min", "opt", "max")
_PROVED = 1 << 14
"""Tokens of all rows up to which a point is run here."""
Sizes = dict[str, tuple[int, int, int]]
"""Axis → its least, optimal and largest size."""


class NoProfile(Exception):
    """A graph has sizes that no profile can be made for, or a profile that it does not take; the message is a clause."""


@dataclass(frozen=True)
class Profile:
    """One range of sizes."""

    name: str
    sizes: Sizes

    def shape(self, port: Port, point: int) -> tuple[int, ...]:
        """The shape of an input at one of `POINTS`."""
        return tuple(self.sizes[size][point] if isinstance(size, str) else size for size in port.shape)

    def facts(self, graph: Graph) -> Json:
        """As profiles.json has it: the inputs with dynamic sizes."""
        dynamic = [port for port in graph.inputs if any(isinstance(size, str) for size in port.shape)]
        return {
            "name": self.name,
            "inputs": {port.name: {key: list(self.shape(port, point)) for point, key in enumerate(POINTS)} for port in dynamic},
        }


def made_for(graph: Graph, options: TensorRtOptions, longest: int | None) -> tuple[Profile, ...]:
    """The profiles of a graph; none where all its sizes are fixed. `longest`: positions of the model. Raises NoProfile."""
    axes = {axis for port in graph.inputs for axis in port.shape if isinstance(axis, str)}
    if strange := sorted(axes - {BATCH, SEQUENCE, PAST, TOTAL, SOURCE}):
        raise NoProfile(f"{graph.file} has an axis {strange[0]!r}, for which no range is known")
    most = min(options.max_tokens, longest or options.max_tokens)
    usual = min(options.optimal_tokens, most)
    chunk = min(CHUNK, most // 2)
    rows, text, few = (1, 1, options.max_batch), (1, usual, most), (1, 1, chunk)
    past = (1, min(usual, most - chunk), most - chunk)  # with the new tokens no longer than a model with learnt positions can address
    if not axes:
        return ()
    if PAST in axes and SOURCE in axes:  # the later steps of an encoder-decoder; its decoder begins with another graph
        wanted = [("decode", {BATCH: rows, SEQUENCE: few, PAST: past, SOURCE: text})]
    elif PAST in axes:
        wanted = [
            ("prefill", {BATCH: rows, SEQUENCE: text, PAST: (0, 0, 0)}),
            ("decode", {BATCH: rows, SEQUENCE: few, PAST: past}),
        ]
    elif SOURCE in axes and SEQUENCE in axes:
        goes_on = any(port.name.startswith("present.") for port in graph.outputs)
        wanted = [("first step", {BATCH: rows, SEQUENCE: few if goes_on else text, SOURCE: text})]
    elif graph.role in ("embedding", "head"):  # of a chain: what lies between them has the two profiles of a decoder
        wanted = [("prefill", {BATCH: rows, SEQUENCE: text}), ("decode", {BATCH: rows, SEQUENCE: few})]
    else:
        wanted = [("whole texts", {BATCH: rows, SEQUENCE: text, SOURCE: text})]
    return tuple(Profile(name, _with_totals(sizes)) for name, sizes in wanted)


def _with_totals(sizes: Sizes) -> Sizes:
    past, new = sizes.get(PAST, (0, 0, 0)), sizes.get(SEQUENCE, (0, 0, 0))
    return {**sizes, TOTAL: (past[0] + new[0], past[1] + new[1], past[2] + new[2])}


def prove(folder: Path, graph: Graph, profiles: tuple[Profile, ...], threads: int) -> int:
    """Run a graph at the points of its profiles with onnxruntime: the least ones, an empty cache among them, and the others as far as they
    are small enough. Gives the number of runs. Raises NoProfile where the graph does not take one, or gives other sizes than it says."""
    opened, runs = session.OrtSession(folder / graph.file, threads), 0
    for profile in profiles:
        for point in _small(profile):
            feeds = {port.name: np.zeros(profile.shape(port, point), port.dtype) for port in graph.inputs}
            feeds |= {port.name: np.ones_like(feeds[port.name]) for port in graph.inputs if port.name.endswith("attention_mask")}
            if "position_ids" in feeds:
                last = profile.sizes[TOTAL][point]
                feeds["position_ids"] += np.arange(last - feeds["position_ids"].shape[1], last)
            where = f"{graph.file} at the {POINTS[point]} sizes of its profile {profile.name}"
            try:
                outputs = opened.run(None, feeds)
            except Exception as error:  # onnxruntime has types of its own
                raise NoProfile(f"{where} does not run: {' '.join(str(error).split())[:300]}") from error
            known = {name: size[point] for name, size in profile.sizes.items() if name != PAST}  # what comes out is longer than the past
            for port, array in zip(graph.outputs, outputs, strict=True):
                pairs = zip(port.shape, array.shape, strict=True)
                if any(known.get(axis, size) != size for axis, size in pairs if isinstance(axis, str)):
                    raise NoProfile(f"{where} gives {port.name} in the shape {array.shape}, where {port.shape} belongs")
            runs += 1
    return runs


def _small(profile: Profile) -> Iterator[int]:
    for point in range(len(POINTS)):
        sizes = {name: size[point] for name, size in profile.sizes.items()}
        if sizes.get(BATCH, 1) * max(sizes.get(TOTAL, 1), sizes.get(SOURCE, 1)) <= _PROVED or point == 0:
            yield point


def written(known: GraphSet, profiles: Mapping[str, tuple[Profile, ...]], options: TensorRtOptions) -> Json:
    """The content of profiles.json."""
    graphs: list[dict[str, Any]] = [
        {
            "role": graph.role, "file": graph.file, "engine": f"{Path(graph.file).stem}{session.ENDING}",
            "profiles": [profile.facts(graph) for profile in profiles[graph.role]],
        }
        for graph in known.graphs
    ]  # fmt: skip
    return {"version": 1, "dtype": known.dtype, "opset": known.opset, "newest_opset": options.newest_opset, "graphs": graphs}
