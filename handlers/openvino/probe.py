"""Probe of the toolchain `openvino`: its libraries import together, and OpenVINO computes. Runs inside."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from handlers.toolchains import inside


def probe(options: argparse.Namespace) -> inside.Probed:
    """Add two numbers in a model. Raises whatever is wrong."""
    nothing: Any = None
    sys.modules["openvino_telemetry"] = nothing  # see `handlers.openvino.library`
    import nncf  # noqa: F401
    import numpy as np
    import openvino as ov
    import openvino_genai  # noqa: F401
    import openvino_tokenizers  # noqa: F401
    import transformers  # noqa: F401

    value = ov.opset13.parameter(name="a", dtype=ov.Type.f32, shape=ov.PartialShape([1]))
    model = ov.Model([ov.opset13.add(value, value)], [value], "probe")
    answer = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([np.array([1.5], np.float32)])[0]
    if float(answer[0]) != 3.0:
        raise RuntimeError(f"OpenVINO says that 1.5 + 1.5 is {answer[0]}")
    return inside.Probed(inside.versions(("openvino", "nncf", "openvino-tokenizers", "openvino-genai", "transformers")))


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
