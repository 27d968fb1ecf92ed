"""The padding token of a runtime's own file."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="qualcomm/ai-hub-models#304",
    name="the padding token of a runtime's own file",
    happened="The padding token in genai_config.json fell back to the end tokens.",
    mutant="genai_config.json has another padding token",
    hall="chat",
    variant="onnx-genai-fp32",
    make=like("files", "the runtime's padding"),
    check="finding: runtime",
    words=r"pad_token_id is 4 instead of 0",
)
