"""What onnxruntime really makes of quantized graphs, in the kernels of a processor without VNNI, against what the graph alone says.

Each graph runs with two sets of weights, at the level whose kernels end at 16 bits and at one whose sums are exact. Where the answers
differ, the bound must have said so, whatever operators stand between; and graphs whose weights leave room must not be refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from handlers.graphs.integer_products import examine
from tests.portability.conftest import Answers

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
INPUTS, OUTPUTS = 64, 32
QU, QS = "q = QuantizeLinear(x, sx, zu) f = DequantizeLinear(q, sx, zu) ", "q = QuantizeLinear(x, sx, zs) f = DequantizeLinear(q, sx, zs) "
G, END = "g = DequantizeLinear(w, one, z0) ", " p = QuantizeLinear(o, sy, zu) y = DequantizeLinear(p, sy, zu)"
SCALARS = {
    "sx": np.float32(1 / 255), "sy": np.float32(4), "one": np.float32(0.01), "zu": np.uint8(0), "zs": np.int8(-128), "z0": np.int8(0),
    "neutral": np.float32(1), "axes": np.array([0]), "start": np.zeros(2, np.int64), "stop": np.full(2, 100), "rows": np.array([5, INPUTS]),
    "index": np.arange(INPUTS), "pads": np.zeros(8, np.int64), "start4": np.zeros(4, np.int64), "stop4": np.full(4, 100),
}  # fmt: skip

MATRIX = {
    "u8s8": QU + G + "y = MatMul(f, g)",
    "s8s8": QS + G + "y = MatMul(f, g)",
    "s8s8-gemm": QS + G + "y = Gemm(f, g)",
    "u8s8-gemm-alpha": QU + G + "y = Gemm <alpha = 2.0> (f, g)",
    "s8s8-out": QS + G + "o = MatMul(f, g)" + END,
    "s8s8-qlinear": "q = QuantizeLinear(x, sx, zs) p = QLinearMatMul(q, sx, zs, w, one, z0, sy, zs) y = DequantizeLinear(p, sy, zs)",
    "s8s8-integer": "q = QuantizeLinear(x, sx, zs) p = MatMulInteger(q, w, zs) y = Cast <to = 1> (p)",
    "u8s8-qlinear": "q = QuantizeLinear(x, sx, zu) p = QLinearMatMul(q, sx, zu, w, one, z0, sy, zu) y = DequantizeLinear(p, sy, zu)",
    "dynamic": "q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, w, z) c = Cast <to = 1> (p) y = Mul(c, s)",
    "dynamic-dq": "q, s, z = DynamicQuantizeLinear(x) f = DequantizeLinear(q, s, z) " + G + "y = MatMul(f, g)",
    **{
        f"activation-{name}": QU + body + G + "y = MatMul(m, g)"
        for name, body in {
            "slice": "m = Slice(f, start, stop) ", "expand": "m = Expand(f, rows) ", "cast": "m = Cast <to = 1> (f) ",
            "dropout": "m = Dropout(f) ", "mul": "m = Mul(f, neutral) ", "mul-first": "m = Mul(neutral, f) ",
            "reshape": "m = Reshape(f, rows) ", "relu": "m = Relu(f) ", "flatten": "m = Flatten(f) ",
            "concat": "m = Concat <axis = 0> (f, f) ",
            "split": "m, n = Split <axis = 0, num_outputs = 2> (f) ", "two": "h = Identity(f) i = Cast <to = 1> (h) m = Mul(i, neutral) ",
        }.items()
    },
    **{
        f"weight-{name}": QU + G + body + "y = MatMul(f, m)"
        for name, body in {
            "cast": "m = Cast <to = 1> (g) ", "mul": "m = Mul(g, neutral) ", "identity": "m = Identity(g) ",
            "slice": "m = Slice(g, start, stop) ",
            "gather": "m = Gather(g, index) ", "squeeze": "h = Unsqueeze(g, axes) m = Squeeze(h, axes) ",
        }.items()
    },
    "weight-first": QU + "t = Transpose(f) h = Transpose(w) g = DequantizeLinear(h, one, z0) y = MatMul(g, t)",
    "quantized-constant": QU + "i = QuantizeLinear(v, one, z0) g = DequantizeLinear(i, one, z0) y = MatMul(f, g)",
    "branch": (
        "c = Constant <value = bool {1}> () y = If (c) <then_branch = g1 () => (t) { q, s, z = DynamicQuantizeLinear(x)"
        " p = MatMulInteger(q, w, z) t = Cast <to = 1> (p) }, else_branch = g2 () => (e) { e = Identity(x) }>"
    ),
    "two-activations": QU + "h = QuantizeLinear(x, sx, z0) i = DequantizeLinear(h, sx, z0) t = Transpose(i) y = MatMul(f, t)",
    "weights-alone": G + "y = MatMul(x, g)",
}  # fmt: skip
"""Name → a product of x (5, 64) with w (64, 32)."""
FLOAT_WEIGHTS = {"gemm": QU + "o = Gemm(f, v)" + END, "matmul": QU + "o = MatMul(f, v)" + END}
FILTERS = {
    **{
        f"conv-{name}": quantized + body + "g = DequantizeLinear(k, one, z0) o = Conv(m, g)" + END
        for name, quantized, body in (
            ("u8s8", QU, "m = Identity(f) "), ("s8s8", QS, "m = Identity(f) "), ("pool", QU, "m = MaxPool <kernel_shape = [1, 1]> (f) "),
            ("pad", QU, "m = Pad(f, pads) "), ("slice", QU, "m = Slice(f, start4, stop4) "),
        )
    },
    "conv-float": QU + "o = Conv(f, j)" + END,
}  # fmt: skip
"""Name → a convolution of x (1, 16, 8, 8) with k (8, 16, 3, 3)."""


def weights(value: int) -> dict[str, np.ndarray]:
    filters = np.full((8, 16, 3, 3), value, np.int8)
    matrix = np.full((INPUTS, OUTPUTS), value, np.int8)
    return {"w": matrix, "k": filters, "v": matrix / np.float32(100), "j": filters / np.float32(100)}


def graph(body: str, shape: tuple[int, ...], value: int) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f"{HEAD} g (float[{','.join(map(str, shape))}] x) => (float y) {{ {body} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    given = {**SCALARS, **weights(value)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in given.items() if name in words)
    return proto


def in_a_function(value: int) -> onnx.ModelProto:
    """A product inside a function of the model."""
    text = (
        '<ir_version: 10, opset_import: ["" : 20, "own" : 1]> g (float[5,64] x) => (float[5,32] y) { y = own.product(x, w) }'
        ' <domain: "own", opset_import: ["" : 20]> product (a, b) => (c) { q, s, z = DynamicQuantizeLinear(a)'
        " p = MatMulInteger(q, b, z) d = Cast <to = 1> (p) c = Mul(d, s) }"
    )
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights(value)["w"], "w"))
    return proto


def lstm(value: int) -> onnx.ModelProto:
    """A recurrent layer with int8 weights, as onnxruntime's own tool writes it."""
    hidden = 16
    inputs = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = onnx.helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], domain="com.microsoft", hidden_size=hidden)
    given = {
        "w": np.full((1, 64, 4 * hidden), value, np.int8), "r": np.full((1, hidden, 4 * hidden), value, np.int8),
        "s": np.array([0.0005], np.float32), "z": np.array([0], np.int8),
    }  # fmt: skip
    made = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 2, 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in given.items()],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(made, opset_imports=opsets, ir_version=10)


def cases(value: int) -> dict[str, tuple[onnx.ModelProto, tuple[int, ...]]]:
    """Name → graph and the shape of x."""
    matrix, image = (5, INPUTS), (1, 16, 8, 8)
    found = {name: (graph(body, matrix, value), matrix) for name, body in (MATRIX | FLOAT_WEIGHTS).items()}
    found |= {name: (graph(body, image, value), image) for name, body in FILTERS.items()}
    return found | {"function": (in_a_function(value), matrix), "lstm": (lstm(value), (3, 2, 64))}


MAY_BE_REFUSED = {"gemm", "conv-float", "weight-slice", "weight-gather", "weight-squeeze"}
"""Weights that the runtime quantizes itself, or that nothing but a run of the graph would tell."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of all graphs, with weights of the whole range and with room, and what their examination says."""
    folder, faults = tmp_path_factory.mktemp("graphs") / "runtime", {}
    folder.mkdir()
    for kind, value in (("whole", 127), ("room", 64)):
        for name, (proto, shape) in cases(value).items():
            onnx.save(proto, folder / f"{kind}-{name}.onnx")
            np.savez(folder / f"{kind}-{name}.0.npz", x=np.random.default_rng(1).uniform(0.7, 1, shape).astype(np.float32))
            faults[f"{kind}-{name}"] = examine([ir.serde.deserialize_model(proto)]).fault
    return folder, faults


@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_whatever_comes_out_wrong_is_said_from_the_graph(
    run_as: Callable[[str, Path], Answers], told: tuple[Path, dict[str, Any]], level: str
) -> None:
    folder, faults = told
    right, found = run_as("sse4.1", folder), run_as(level, folder)
    wrong = set()
    for name in faults:
        exact, answer = right[f"{name}.0"]["y"], found[f"{name}.0"]["y"]
        if np.abs(exact - answer).max() > 1e-3 * np.abs(exact).max():
            wrong.add(name)
    assert {"whole-u8s8", "whole-s8s8", "whole-function", "whole-lstm", "whole-conv-pool", "whole-gemm"} <= wrong, "the control"
    assert not [name for name in wrong if faults[name] is None]


def test_weights_that_leave_room_are_not_refused(told: tuple[Path, dict[str, Any]]) -> None:
    _, faults = told
    refused = {name.removeprefix("room-") for name, fault in faults.items() if name.startswith("room-") and fault is not None}
    assert refused <= MAY_BE_REFUSED
    assert faults["whole-weights-alone"] is faults["whole-matmul"] is faults["whole-two-activations"] is None


@pytest.mark.parametrize(
    ("activations", "weights_", "reduce"),
    [
        ("QUInt8", "QInt8", True),
        ("QUInt8", "QInt8", False),
        ("QUInt8", "QUInt8", False),
        ("QInt8", "QInt8", True),
        ("QInt8", "QInt8", False),
    ],
)
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_graphs_of_onnxruntimes_own_tools_are_judged_by_their_weights(
    tmp_path: Path, form: str, activations: str, weights_: str, reduce: bool
) -> None:
    import logging

    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    logging.disable(logging.CRITICAL)
    rng = np.random.default_rng(0)
    body = (
        "q = MatMul(x, a) k = MatMul(x, b) t = Transpose <perm = [0, 2, 1]> (k) s = MatMul(q, t) p = Softmax(s) v = MatMul(x, c)"
        " y = MatMul(p, v)"
    )
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g (float[1,6,64] x) => (float[1,6,64] y) {{ {body} }}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), name) for name in "abc")
    onnx.save(proto, tmp_path / "fp32.onnx")

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter([{"x": rng.uniform(0, 1, (1, 6, 64)).astype(np.float32)}] * 2)

        def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
            return next(self.rows, None)

    try:
        quantize_static(
            tmp_path / "fp32.onnx", tmp_path / "int8.onnx", Reader(), quant_format=QuantFormat[form],
            activation_type=QuantType[activations], weight_type=QuantType[weights_], per_channel=True, reduce_range=reduce,
        )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    fault = examine([ir.load(tmp_path / "int8.onnx")]).fault
    whole_range = weights_ == "QInt8" and not reduce and (form == "QDQ" or activations == "QUInt8")
    assert (fault is not None) == whole_range, fault
