"""The default base of the rotary positions."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged

EXHIBIT = Exhibit(
    bug="InternLM/lmdeploy#4304",
    name="the default base of the rotary positions",
    happened="`rope_theta` was read at the top level of config.json, where transformers 5 no longer writes it: 10,000 was taken.",
    mutant="the graph rotates with another base",
    hall="chat",
    variant="onnx",
    make=damaged(source="rope theta"),
    check="limit: merged",
    words=r"differs from the merged",
    quick=True,
)
