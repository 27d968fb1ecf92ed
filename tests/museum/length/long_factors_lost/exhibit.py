"""The factors of long texts."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ggml-org/llama.cpp#24820",
    name="the factors of long texts",
    happened="The factors of LongRoPE were read under their old name alone and left out without a word.",
    mutant="the factors of long texts are never taken",
    hall="long longrope",
    variant="onnx",
    make=like("length", "long factors never taken"),
    check="long text",
    words=r"long text",
)
