"""Logits of a graph without their scale."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.validate.damage_length import scale_logits

EXHIBIT = Exhibit(
    bug="vllm-project/vllm#52158",
    name="logits of a graph without their scale",
    happened="A backend left out the division of the logits: the tokens are the same, and all probabilities are wrong.",
    mutant="the logits are three times as large",
    hall="chat",
    variant="onnx",
    make=damaged(lambda folder: scale_logits(folder, 0, 3.0)),
    check="threshold: kl",
    words=r"the divergence of .* above the limit",
)
