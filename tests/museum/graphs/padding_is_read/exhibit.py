"""Batches of unlike texts."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/optimum#1381",
    name="batches of unlike texts",
    happened="Exported graphs counted positions as if no text of a batch were padded: only batches of one text gave meaningful results.",
    mutant="the graph reads padding as text",
    hall="chat",
    variant="onnx",
    make=like("sabotage", "mask ignored"),
    check="limit: padding",
    words=r"left-padded batch",
    quick=True,
)
