"""Compares a graph with the twin that its stored weights give: `python -m handlers.validate.twins.compare FILE`, a JSON `Order`.

Started by a check in a process of its own, since it loads PyTorch and onnxruntime, one after the other. Three things are looked at: whether
each stored weight is a merged one rounded, whether the graph in fp32 arithmetic is the twin (its structure), and what is left, the rounding
of activations. The answer is a JSON `Answer` on standard output.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from handlers.child import process
from handlers.validate.engines.onnx_folder import graph_files
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.twins import stored
from handlers.validate.twins.comparison import apart, rounding, spread
from handlers.validate.twins.messages import Answer, Order
from handlers.validate.twins.passes import of_graph, of_twin
from handlers.validate.twins.stored import Stored, UnreadableError
from handlers.validate.twins.twin import Twin, Wrong


def compare(order: Order) -> Answer:
    """The answer to an order; raises what a runtime raises."""
    spec = EngineSpec(engine=order.engine, folder=order.folder, threads=order.threads, task=order.task, sentence=order.sentence)
    try:
        weights = _weights(Path(order.folder))
        twin = Twin(Path(order.merged), spec)
        wrong = twin.take(weights)
        told = _told(wrong)
        if told and any(not one.parameter for one in wrong):
            return Answer(weights=told)
        twin.round_to({one for path in graph_files(Path(order.folder)).values() for one in stored.halves(path)})
        wanted = of_twin(spec, twin.engine, order.texts)
        del twin, weights
        gc.collect()
        floats = of_graph(spec, order.texts, in_float=True)
    except UnreadableError as error:
        return Answer(left_out=str(error))
    unit = spread(wanted)
    structure = max((apart(wanted, rows, unit, way) for way, rows in _by_way(floats).items()), key=lambda one: one.error)
    text = order.texts[structure.text]
    count = len(text.targets or text.ids)
    position = int(text.places(count)[structure.first]) + text.start
    if not np.isfinite(structure.error):
        return Answer(weights=told, tokens=count, way=structure.way)
    ways = _by_way(of_graph(spec, order.texts, in_float=False))
    rounded = [rounding(rows, ways[way]) for way, rows in _by_way(floats).items()]
    worst = max(rounded, key=lambda one: abs(one.slope - 1))
    return Answer(weights=told, error=structure.error, position=position, tokens=count, way=structure.way, rounding=worst)


def _weights(folder: Path) -> list[Stored]:
    return [one for role, path in graph_files(folder).items() for one in stored.read(path, role)]


def _by_way(found: Sequence[Mapping[str, np.ndarray]]) -> dict[str, list[np.ndarray]]:
    return {way: [rows[way] for rows in found] for way in found[0]}


def _told(wrong: Sequence[Wrong]) -> str | None:
    """The worst of what is wrong with the stored weights."""
    if not wrong:
        return None
    worst = max(wrong, key=lambda one: one.share)
    others = f"; so are {len(wrong) - 1} other weights" if len(wrong) > 1 else ""
    if worst.misrounded is None:
        return f"its weight {worst.name} is none of the merged model's{others}"
    found = worst.misrounded
    rows = f"row {found.row}" + (f" and {found.rows - 1} others are" if found.rows > 1 else " is")
    which = f"its weight {worst.name}, which is {worst.parameter} of the merged model"
    if not found.share:
        return f"of {which}, {rows} rounded in steps {found.steps:.2g} times too coarse{others}"
    far = f"{found.share:.0%} of row {found.row} is too far away, by up to {found.steps:.3g} steps"
    return f"of {which}, {rows} not what rounding gives: {far}{others}"


def main(words: Sequence[str]) -> int:
    """Answer the order in a file."""
    order = Order.model_validate_json(Path(words[0]).read_bytes())
    process.bind(order.limits)
    print(compare(order).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
