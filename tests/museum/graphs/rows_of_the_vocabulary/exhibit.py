"""Rows of the vocabulary."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="unslothai/unsloth-zoo#923",
    name="rows of the vocabulary",
    happened="When tokens were added, the embedding was cut to the tokenizer's length, and trained rows behind it were lost.",
    mutant="seven rows of the embedding that no prompt reads are zeros",
    hall="chat",
    variant="onnx",
    make=like("sabotage", "rows that no prompt reads"),
    check="finding: rare tokens",
    words=r"tokens from all over the vocabulary it differs",
    quick=True,
)
