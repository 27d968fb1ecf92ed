"""Another way of taking texts apart."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ggml-org/llama.cpp#7724",
    name="another way of taking texts apart",
    happened="Files of Llama 3 named another pre-tokenizer than the model's.",
    mutant="`tokenizer.ggml.pre` is `default`",
    hall="gguf chat",
    variant="gguf-q8_0",
    make=like("gguf", "another way of taking texts apart"),
    check="finding: tokenizer",
    words=r"its tokenizer gives other token ids",
)
