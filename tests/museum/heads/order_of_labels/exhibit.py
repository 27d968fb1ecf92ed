"""Labels in another order."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="open-edge-platform/geti#2397",
    name="labels in another order",
    happened="Labels went through a set, so that a deployed classifier gave them other numbers than the training had.",
    mutant="`id2label` is permuted",
    hall="classifier",
    variant="pytorch",
    make=like("files", "labels permuted"),
    check="finding: labels",
    merge=True,
    words=r"its labels have other names",
)
