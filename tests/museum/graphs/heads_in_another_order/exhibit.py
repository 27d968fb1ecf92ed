"""Heads of keys in another order."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import Tensors, traced


def _tiled(tensors: Tensors) -> None:
    for name in [name for name in tensors if "q_proj" in name or "o_proj" in name]:
        turned = tensors[name] if "q_proj" in name else tensors[name].t()
        heads = turned.reshape(4, -1, turned.shape[1])[[0, 2, 1, 3]].reshape(turned.shape)
        tensors[name] = heads if "q_proj" in name else heads.t()


EXHIBIT = Exhibit(
    bug="onnx/onnx#7274",
    name="heads of keys in another order",
    happened="Keys and values of grouped attention were tiled (0, 1, 0, 1) where each belongs to neighbouring queries (0, 0, 1, 1).",
    mutant="the second and third query heads attend to each other's keys",
    hall="chat",
    variant="onnx",
    make=traced(_tiled),
    check="limit: merged",
    words=r"differs from the merged",
)
