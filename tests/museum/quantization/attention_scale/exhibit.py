"""The scale of attention."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="ml-explore/mlx-swift-examples#99",
    name="the scale of attention",
    happened="The scores of Gemma 2 were divided by another number than its configuration says.",
    mutant="the scores of a layer of the 4-bit graph are 5 % smaller",
    hall="twins",
    variant="onnx-int4",
    make=like("quantized", "attention scale - 5 %"),
    check="finding: structure",
    words=r"its graph is not the model that its own weights give",
)
