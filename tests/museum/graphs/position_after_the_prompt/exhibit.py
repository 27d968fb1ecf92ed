"""A cache that is off by one."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="pytorch/executorch#2689",
    name="a cache that is off by one",
    happened="The place where the cache goes on was one too far.",
    mutant="where there is a cache, every position is one too many",
    hall="chat",
    variant="onnx",
    make=like("sabotage", "cached positions one too many"),
    check="limit: cache",
    words=r"cached decoding .* the cache is broken",
    quick=True,
)
