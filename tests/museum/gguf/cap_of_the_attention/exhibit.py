"""Words without sense from exact weights."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="unslothai/unsloth#7792",
    name="words without sense from exact weights",
    happened="The weights of a merged Gemma 2 in GGUF were exact, and its text was word salad; caps and windows are in the file's"
    " keys, not in weights.",
    mutant="the file says another cap of the scores of attention",
    hall="gguf Gemma 2",
    variant="gguf-q8_0",
    make=like("gguf", "a cap of the attention"),
    check="finding: structure",
    words=r"its graph is not the model that its own weights give",
)
