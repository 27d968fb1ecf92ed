"""A quantization_config that is left."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/transformers#34847",
    name="a quantization_config that is left",
    happened="A model that was taken back to 16 bits kept its quantization_config, so that it could not be loaded, or was quantized"
    " once more.",
    mutant="config.json says that the weights are quantized",
    hall="chat",
    variant="pytorch",
    make=like("files", "weights that are said to be packed"),
    check="finding: config",
    words=r"says that its weights are quantized",
    quick=True,
)
