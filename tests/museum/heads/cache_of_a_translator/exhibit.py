"""A cache that is one too short."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/transformers#37414",
    name="a cache that is one too short",
    happened="The place where a cache begins was wrong by one.",
    mutant="each cache that the decoder gives back has its second token in the place of its first",
    hall="translator",
    variant="onnx",
    make=like("sabotage", "cache overwritten by one"),
    check="limit: cache",
    words=r"cached decoding .* the cache is broken",
)
