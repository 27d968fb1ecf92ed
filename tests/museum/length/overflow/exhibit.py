"""An overflow in long texts."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/transformers#19229",
    name="an overflow in long texts",
    happened="In fp16 the hidden states of long inputs became infinite.",
    mutant="logits are infinite from position 300 on",
    hall="long qwen3",
    variant="onnx-fp16",
    make=like("length", "overflow from 300 on"),
    check="finding: length",
    words=r"not finite, from position 3",
)
