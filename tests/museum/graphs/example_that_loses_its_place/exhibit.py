"""An example that loses its place."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.validate.damage_files import text

EXHIBIT = Exhibit(
    bug="huggingface/transformers#41430",
    name="an example that loses its place",
    happened="Translations by an exported Marian model were incomplete or wrong: masks, positions and the loop that writes tokens"
    " were not right.",
    mutant="the folder's `example.py` begins its positions anew at every step",
    hall="shown",
    variant="onnx",
    make=damaged(text("example.py", "np.arange(total - len(new), total,", "np.arange(0, len(new),")),
    check="finding: example",
    words=r"example",
)
