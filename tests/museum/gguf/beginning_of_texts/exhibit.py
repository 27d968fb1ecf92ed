"""A token that no text begins with."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ggml-org/llama.cpp#3966",
    name="a token that no text begins with",
    happened="The converter ignored `add_bos_token`, and each text began with a token that the model does not know there.",
    mutant="`tokenizer.ggml.add_bos_token` is the contrary",
    hall="gguf chat",
    variant="gguf-q8_0",
    make=like("gguf", "a beginning that no text has"),
    check="finding: tokenizer",
    words=r"its tokenizer",
)
