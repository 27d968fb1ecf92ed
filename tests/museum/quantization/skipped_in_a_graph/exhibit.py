"""A quantization of a graph that is skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.museum.exhibit import Exhibit, Source


def _copied(models: Source, variant: str, target: Path) -> None:
    shutil.copytree(models.made("sound", "onnx"), target)


EXHIBIT = Exhibit(
    bug="modelscope/ms-swift#9830",
    name="a quantization of a graph that is skipped",
    happened="The same of a graph: nothing was quantized.",
    mutant="the folder of the 4-bit graph has the graph in fp32",
    hall="twins",
    variant="onnx-int4",
    make=_copied,
    check="finding: weights",
    words=r"its weights are not quantized: its files of weights have",
)
