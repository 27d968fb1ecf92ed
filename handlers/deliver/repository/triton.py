"""Triton's `config.pbtxt` for a graph that its onnxruntime backend runs.

It names the one version that is served (`version_policy`), so that a version which lies there is served when that line says so, and no
sooner: https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/model_configuration.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from handlers.deliver.repository.signature import Port

FILE, GRAPH = "config.pbtxt", "model.onnx"
TYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING", 9: "BOOL", 10: "FP16", 11: "FP64",
    12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
"""Triton's names of ONNX's types."""
_SERVED = re.compile(r"(version_policy\s*:?\s*\{\s*specific\s*:?\s*\{\s*versions\s*:\s*\[\s*)(\d+)(\s*\]\s*\}\s*\})")


def config(model: str, inputs: Sequence[Port], outputs: Sequence[Port], served: int) -> str:
    """The configuration of a model. Raises ValueError for a type that Triton has not."""
    lines = [
        f"name: {json.dumps(model)}", 'backend: "onnxruntime"', "max_batch_size: 0",
        f"version_policy: {{ specific: {{ versions: [ {served} ] }} }}",
        ports("input", inputs), ports("output", outputs),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def ports(kind: str, values: Sequence[Port]) -> str:
    """Inputs or outputs."""
    return f"{kind} [\n" + ",\n".join(_port(value) for value in values) + "\n]"


def _port(port: Port) -> str:
    if port.type not in TYPES:
        raise ValueError(f"{port.name} is of the type {port.type}, which Triton has not")
    dims = f"dims: [ {', '.join(map(str, port.dims))} ]" if port.dims else "dims: [ 1 ] reshape: { shape: [ ] }"
    return f"  {{ name: {json.dumps(port.name)} data_type: TYPE_{TYPES[port.type]} {dims} }}"


def served(text: str) -> int | None:
    """The version that a configuration names; None where it names none as ours do."""
    match = _SERVED.search(text)
    return int(match.group(2)) if match else None


def serving(text: str, version: int) -> str:
    """The configuration with another version served, and all else as people left it."""
    return _SERVED.sub(lambda match: f"{match.group(1)}{version}{match.group(3)}", text, count=1)
