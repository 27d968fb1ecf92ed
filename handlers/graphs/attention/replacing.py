"""What every change of a graph's attention needs: constants, the scores that are common to all forms, a value in another one's place.

Free of torch and onnxruntime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir.tape import Tape

from handlers.graphs.attention.finding import Attention

PREFIX = "cached_attention"


def constant(graph: ir.Graph, *numbers: float, dtype: Any = np.int64) -> ir.Value:
    """A constant (n,) of a graph, which has each once."""
    array = np.array(numbers, dtype)
    name = f"{PREFIX}.{array.dtype}.{'_'.join(map(str, numbers))}"
    known = graph.initializers.get(name)
    if known is not None:
        return known
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def masked(scores: ir.Value, mask: ir.Value, attention: Attention, tape: Tape, graph: ir.Graph) -> ir.Value:
    """The products of queries and keys as the softmax takes them: scaled, capped where the attention does that, and with the mask.

    `mask`: that of the attention, with the axes of `scores`. The nodes go to `tape`, constants to `graph`.
    """
    kind = attention.mask.dtype.numpy() if attention.mask.dtype is not None else np.float32
    scores = tape.op("Mul", [scores, constant(graph, attention.scale, dtype=kind)])
    if attention.softcap:
        cap = constant(graph, attention.softcap, dtype=kind)
        scores = tape.op("Mul", [tape.op("Tanh", [tape.op("Div", [scores, cap])]), cap])
    return tape.op("Add", [scores, mask])


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let a new value be what an old one was, by its name too."""
    new.type, new.shape, name = old.type, old.shape, old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}.before"
    new.name = name


def settled(model: ir.Model) -> ir.Model:
    """The same graph once its attention was changed: no name twice, each node behind what it reads, none that nobody reads."""
    for tidying in (passes.NameFixPass(), passes.TopologicalSortPass(), passes.RemoveUnusedNodesPass()):
        tidying(model)
    return model
