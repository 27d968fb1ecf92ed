"""The epsilon of the norms."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ggml-org/llama.cpp#2384",
    name="the epsilon of the norms",
    happened="All models ran with the first Llama's epsilon (1e-6), and Llama 2 has 1e-5.",
    mutant="the file says another epsilon",
    hall="gguf Llama",
    variant="gguf-q4_k_m",
    make=like("gguf", "another epsilon"),
    check="finding: structure",
    words=r"its graph is not the model that its own weights give",
)
