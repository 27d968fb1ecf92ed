"""Rows of a batch."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/optimum#2326",
    name="rows of a batch",
    happened="Batched inference gave other numbers than single texts for many families.",
    mutant="outputs are a tenth larger in batches of more than four rows",
    hall="chat",
    variant="onnx",
    make=like("sabotage", "many rows"),
    check="finding: batch",
    words=r"rows of a batch affect each other",
)
