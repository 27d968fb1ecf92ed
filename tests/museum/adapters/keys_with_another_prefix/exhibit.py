"""Keys that match no module."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, adapter


def _prefixed(tensors: Tensors) -> Tensors:
    return {name.replace("model.layers", "language_model.model.layers"): tensor for name, tensor in tensors.items()}


EXHIBIT = Exhibit(
    bug="vllm-project/vllm#34186",
    name="keys that match no module",
    happened="An adapter whose keys had another prefix than the server's modules was loaded and answered as the base does.",
    mutant="the keys of the adapter name `language_model.model.layers`",
    hall="adapter",
    variant="pytorch-adapter",
    make=damaged(adapter(_prefixed)),
    check="it runs",
    words=r"could not be run: PEFT itself can't put this adapter on its base: it leaves 16 tensors",
    quick=True,
)
