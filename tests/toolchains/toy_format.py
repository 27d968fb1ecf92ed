"""The ONNX format, with `onnx-int8` wanting the toolchain `fake`."""

from __future__ import annotations

from dataclasses import replace

from handlers.onnx.format import FORMAT

ONNX = replace(
    FORMAT, variants=tuple(replace(one, toolchain="fake") if one.name == "onnx-int8" else one for one in FORMAT.variants)
)  # fmt: skip
