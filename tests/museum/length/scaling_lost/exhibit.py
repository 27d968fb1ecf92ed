"""The scale of the rotary positions."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ggml-org/llama.cpp#2772",
    name="the scale of the rotary positions",
    happened="The converter did not read `rope_scaling`: a model for 16k tokens wrote nonsense.",
    mutant="config.json says `rope_type` default",
    hall="long linear",
    variant="pytorch",
    make=like("length", "scaling lost in the settings"),
    check="finding: config",
    words=r"rope_type",
)
