"""Sums of integers that overflow."""

from __future__ import annotations

from pathlib import Path

from tests.museum.exhibit import Exhibit, Source
from tests.validate import artifacts


def _whole(models: Source, variant: str, target: Path) -> None:
    artifacts.quantize(models.made("sound", "onnx"), target, whole=True)


EXHIBIT = Exhibit(
    bug="microsoft/onnxruntime#6004",
    name="sums of integers that overflow",
    happened="An int8 BERT gave right answers on processors with VNNI alone: elsewhere pairs of products saturate in 16 bits.",
    mutant="weights have all 8 bits",
    hall="chat",
    variant="onnx-int8",
    make=_whole,
    check="finding: portability",
    words=r"overflow|16 bits",
)
