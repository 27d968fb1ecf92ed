"""The part of a head that rotates."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ml-explore/mlx-lm#1698",
    name="the part of a head that rotates",
    happened="`partial_rotary_factor` was not read, and the whole head rotated.",
    mutant="half as many dimensions rotate",
    hall="gguf Phi",
    variant="gguf-q8_0",
    make=like("gguf", "half of the rotary dimensions of Phi"),
    check="finding: structure",
    words=r"its graph is not the model that its own weights give",
)
