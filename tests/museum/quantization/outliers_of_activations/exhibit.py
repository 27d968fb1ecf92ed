"""Activations with other scales."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="microsoft/onnxruntime#26507",
    name="activations with other scales",
    happened="A product of 4-bit weights with activations in 8 bits gave other results than PyTorch.",
    mutant="one scale of the activations is a third of what it should be",
    hall="twins static",
    variant="onnx-int8",
    make=like("quantized", "an activation's scale x 0.3"),
    check="finding: rounding",
    words=r"rounding takes too much away|moves a part",
)
