"""Another pooling."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="Blaizzy/mlx-embeddings#63",
    name="another pooling",
    happened="Vectors were the mean of all tokens, also of models whose vector is that of the first one.",
    mutant="the pooling module takes the mean",
    hall="sentences",
    variant="pytorch",
    make=like("files", "pooling"),
    check="finding: files",
    words=r"its 1_Pooling/config.json is not",
)
