"""Biases that are lost."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="sbryngelson/ANEForge#253",
    name="biases that are lost",
    happened="A loader for Llama and Qwen took the weights of queries, keys and values and dropped Qwen2's biases.",
    mutant="a bias of the queries is zeros",
    hall="gguf Qwen2",
    variant="gguf-q8_0",
    make=like("gguf", "a bias lost"),
    check="finding: structure",
    words=r"its graph is not the model that its own weights give",
)
