"""Padding of sources."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/optimum-executorch#230",
    name="padding of sources",
    happened="The exported encoder of T5 got no attention mask: padding changed what it made of every source.",
    mutant="the encoder reads padding as text",
    hall="translator",
    variant="onnx",
    make=like("sabotage", "mask ignored"),
    check="limit: padding",
    words=r"padded batch",
)
