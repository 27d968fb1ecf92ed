"""Weights that lie there twice."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="Blaizzy/mlx-vlm#1464",
    name="weights that lie there twice",
    happened="A loader took every `.safetensors` of a folder, and a file of 4-bit weights lay beside the shards in 16 bits.",
    mutant="the folder holds a shard that no index names",
    hall="chat",
    variant="pytorch",
    make=like("files", "a shard without an index"),
    check="finding: files",
    words=r"which no index and no graph of the folder names",
    quick=True,
)
