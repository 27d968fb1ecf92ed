"""Another template than that of the training."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="hiyouga/LlamaFactory#7785",
    name="another template than that of the training",
    happened="The template that was saved with the model was not the one that it had been trained with.",
    mutant="the chat template ends each turn otherwise",
    hall="chat",
    variant="onnx",
    make=like("files", "a token of the template"),
    check="finding: template",
    words=r"its chat_template.jinja writes .* instead of",
    quick=True,
)
