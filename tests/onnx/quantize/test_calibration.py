"""A form that is calibrated takes the texts that the stage `calibration` left."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.jobs.plan import spec_of
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize import int8_static
from handlers.texts.rows import Text
from handlers.texts.selection import Texts, write
from tests.onnx.conftest import Exported, make_context, silent


def test_static_ranges_come_from_the_texts_of_the_stage(qwen3: Exported, tmp_path: Path) -> None:  # R2.6
    left = tmp_path / "calibration"
    left.mkdir()
    lines = [f"for number in range({number}):\n    print(number)\n" for number in range(10)]
    write(left, Texts(tuple(map(Text, lines)), (("here", 10),)))
    context = make_context(tmp_path, "onnx-int8-static", {"onnx": qwen3.folder, "calibration": left}, qwen3.folder)
    context = context.model_copy(update={"work": context.work.with_options(OnnxOptions(calibration_samples=8))})
    figures = int8_static.run(context, silent()).figures["calibration"]
    assert isinstance(figures, dict)
    assert figures["sources"] == {"here": 8} and figures["texts"] == 8 and figures["scripts"] == {"Latin": 1.0}
    assert "calibration" in spec_of("onnx-int8-static").needs
