"""End tokens of a runtime's own file."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="onnxruntime/mobius#521",
    name="end tokens of a runtime's own file",
    happened="The end tokens in genai_config.json were taken from config.json, and those of generation_config.json were left out.",
    mutant="genai_config.json has another end token",
    hall="chat",
    variant="onnx-genai-fp32",
    make=like("files", "the runtime's end"),
    check="finding: runtime",
    words=r"eos_token_id is \[5\] instead of 1",
)
