"""A merge in another type."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, weights


def _halve(tensors: Tensors) -> None:
    tensors.update({name: tensor.half() for name, tensor in tensors.items()})


EXHIBIT = Exhibit(
    bug="axolotl-ai-cloud/axolotl#902",
    name="a merge in another type",
    happened="Every merge was saved in fp16, also where the training had been in bf16.",
    mutant="the weights are stored in fp16",
    hall="chat",
    variant="pytorch",
    make=damaged(weights(_halve)),
    check="finding: weights",
    words=r"its weights are not those of the merge",
)
