"""No window."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="unslothai/unsloth#8253",
    name="no window",
    happened="A path of attention was never given the window: every token saw the whole text.",
    mutant="the window of the graph is a million tokens",
    hall="long mistral",
    variant="onnx-int8",
    make=like("length", "window ignored"),
    check="long text",
    words=r"long text",
)
