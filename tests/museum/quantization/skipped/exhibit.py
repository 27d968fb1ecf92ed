"""A quantization that is skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.museum.exhibit import Exhibit, Source


def _copied(models: Source, variant: str, target: Path) -> None:
    shutil.copytree(models.made("sound", "pytorch"), target)


EXHIBIT = Exhibit(
    bug="modelscope/ms-swift#9830",
    name="a quantization that is skipped",
    happened="A command that merges and quantizes merged alone: the model stayed in 16 bits, without a word.",
    mutant="the folder of the 4-bit form has the merged model in 16 bits",
    hall="chat",
    variant="pytorch-w4a16",
    make=_copied,
    check="finding: weights",
    words=r"its weights are not quantized: all of them are stored in bfloat16",
    quick=True,
)
