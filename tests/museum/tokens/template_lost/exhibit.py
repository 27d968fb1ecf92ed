"""No template."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="hiyouga/LlamaFactory#5836",
    name="no template",
    happened="Models with Llama 3's template were saved without any.",
    mutant="chat_template.jinja is missing",
    hall="chat",
    variant="pytorch",
    make=like("files", "template lost"),
    check="finding: template",
    words=r"it has no chat template, and the checkpoint has one",
    quick=True,
)
