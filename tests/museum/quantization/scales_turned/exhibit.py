"""Scales that are turned."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, weights


def _turned(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.endswith("_scale")]:
        tensors[name] = tensors[name].t().reshape(tensors[name].shape)


EXHIBIT = Exhibit(
    bug="vllm-project/vllm#47115",
    name="scales that are turned",
    happened="Scales of blocks were transposed when they were loaded: their number is the same, and each block got another block's scale.",
    mutant="the scales of every matrix lie as those of its transpose",
    hall="chat",
    variant="pytorch-w4a16",
    make=damaged(weights(_turned)),
    check="finding: weights",
    words=r"is not that of the merge",
)
