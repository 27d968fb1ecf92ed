"""Positions that jump."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="skyzh/tiny-llm#46",
    name="positions that jump",
    happened="After the first step positions went on from twice the length of the prompt.",
    mutant="where there is a cache, every position is one too many",
    hall="chat",
    variant="onnx-int4",
    make=like("sabotage", "cached positions one too many"),
    check="limit: cache",
    words=r"cached decoding .* the cache is broken",
)
