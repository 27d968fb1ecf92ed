"""A window that is one too large."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/transformers#39408",
    name="a window that is one too large",
    happened="With flash attention each token saw one token more than its sliding window has.",
    mutant="the window of the graph is one token larger",
    hall="long mistral",
    variant="onnx",
    make=like("length", "window one too large"),
    check="limit: merged",
    words=r"long text",
)
