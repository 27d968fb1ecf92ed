"""A Modelfile without the model's stops."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ollama/ollama#8363",
    name="a Modelfile without the model's stops",
    happened="A fine-tuned model that was imported without its stop tokens never ended its answers.",
    mutant="the Modelfile names another stop",
    hall="gguf chat",
    variant="gguf-q8_0",
    make=like("gguf", "another stop"),
    check="finding: runtime",
    words=r"Modelfile is not the checkpoint's: stop",
)
