"""Optimizers that load all weights into memory are shown graphs without any: matrices stand as inputs until the tool is done.

Called by the steps that use such tools. So memory stays near the graph's own size, and no tool can fold, turn or copy a matrix. Vectors
(biases, scales of norms) stay, since patterns look for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from handlers.graphs.weights.shared_weights import INLINE_BYTES


@dataclass(frozen=True)
class Hidden:
    """A graph without its matrices, and what they were."""

    proto: onnx.ModelProto
    weights: dict[str, ir.Value]

    def restore(self, proto: onnx.ModelProto) -> ir.Model:
        """The graph that a tool made of `proto`, with the matrices back in their places; those that it dropped are gone."""
        model = ir.from_proto(proto)
        for value in list(model.graph.inputs):
            if value.name in self.weights:
                model.graph.inputs.remove(value)
                weight = self.weights[value.name]
                value.const_value, value.type, value.shape = weight.const_value, weight.type, weight.shape
                model.graph.register_initializer(value)
        return model


def hide(model: ir.Model) -> Hidden:
    """Take the matrices out of `model`, which is used up by that; what else is large is loaded."""
    weights: dict[str, ir.Value] = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and len(tensor.shape) > 1 and tensor.nbytes > INLINE_BYTES and not value.is_graph_output():
            weights[name] = ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
            del model.graph.initializers[name]
            value.const_value, value.type, value.shape = None, weights[name].type, weights[name].shape
            model.graph.inputs.append(value)
    ir.external_data.load_to_model(model)
    return Hidden(ir.to_proto(model), weights)
