"""Settings of generation that are lost."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="arcee-ai/mergekit#275",
    name="settings of generation that are lost",
    happened="A merge did not copy generation_config.json.",
    mutant="generation_config.json is missing",
    hall="chat",
    variant="onnx",
    make=like("files", "generation_config.json lost"),
    check="finding: generation",
    words=r"lacks generation_config.json",
    quick=True,
)
