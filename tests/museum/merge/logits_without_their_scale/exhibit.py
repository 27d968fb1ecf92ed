"""Logits without their scale."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, weights


def _larger(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"] * 1.035


EXHIBIT = Exhibit(
    bug="vllm-project/vllm#52158",
    name="logits without their scale",
    happened="A backend left out the division of the logits: the tokens are the same, and all probabilities are wrong.",
    mutant="the last norm is 3.5 % too large",
    hall="chat",
    variant="pytorch",
    make=damaged(weights(_larger)),
    check="threshold: kl",
    words=r"the divergence of .* above the limit",
    merge=True,
)
