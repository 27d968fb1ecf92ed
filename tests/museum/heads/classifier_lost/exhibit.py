"""A classifier's head that is lost."""

from __future__ import annotations

from pathlib import Path

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import config, weights


def _headless(folder: Path) -> None:
    weights(lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("classifier")])(folder)
    config(id2label=None, label2id=None)(folder)


EXHIBIT = Exhibit(
    bug="unslothai/unsloth-zoo#1087",
    name="a classifier's head that is lost",
    happened="Merging to 16 bits wrote the base's tensors alone: the trained head and its labels were gone, and a reload made up a"
    " new head.",
    mutant="the head of the merged model and the names of its labels are missing",
    hall="classifier",
    variant="pytorch",
    make=damaged(_headless),
    check="it runs",
    words=r"could not be run|labels",
    merge=True,
)
