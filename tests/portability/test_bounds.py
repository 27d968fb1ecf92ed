"""Whether integer sums can overflow in 16 bits is told from a graph alone, and the weights that we write never do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from daemon.contract.faults.errors import Permanent
from handlers.graphs.integer_products import HIGHEST, IntegerProduct, examine
from handlers.onnx.quantize.rewriters import int8_rewriter
from handlers.onnx.quantize.rewriters.block_quantization import Scheme
from handlers.onnx.quantize.rewriters.int8_rewriter import quantize_matrix
from tests.onnx.small import bert, derived
from tests.portability import graphs
from tests.portability.arithmetic import exact, pairwise, worst_activations

ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2))
"""All ways to take four weights two by two."""
MATRICES = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 14), st.integers(1, 6)), elements=st.floats(-8, 8, width=32) | st.sampled_from([0.0, 1.0, -1.0])
)
BYTES = arrays.arrays(np.int8, st.tuples(st.integers(1, 14), st.integers(1, 4)), elements=st.integers(-128, 127))


def graph(text: str, **weights: np.ndarray) -> ir.Model:
    opsets = '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
    proto = onnx.parser.parse_model(f"{opsets} g {text}")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.serde.deserialize_model(proto)


def only(model: ir.Model) -> IntegerProduct:
    (product,) = examine([model]).products
    return product


@given(MATRICES, st.sampled_from([0, 1]))
@settings(max_examples=300, deadline=None)
def test_our_weights_never_overflow_whatever_the_activations_and_the_kernels_order(matrix: np.ndarray, channel: int) -> None:
    values, scales = quantize_matrix(matrix, channel)
    columns = values if channel == 1 else values.T
    activations = worst_activations(columns)
    for order in ORDERS:
        assert np.array_equal(pairwise(activations, columns, order), exact(activations, columns))
    step = scales[None, :] if channel == 1 else scales[:, None]
    assert (np.abs(values * step - matrix) <= step * 0.5001).all()


@given(MATRICES)
@settings(max_examples=100, deadline=None)
def test_our_scales_are_no_larger_than_the_room_demands(matrix: np.ndarray) -> None:
    _, scales = quantize_matrix(matrix, 1)
    _, whole = quantize_matrix(matrix, 1, multiplied=False)
    assert (scales >= whole).all() and (scales <= 2 * whole * 1.0001).all()


@given(BYTES)
@settings(max_examples=300, deadline=None)
def test_the_bound_says_overflow_just_where_the_kernels_arithmetic_overflows(weights: np.ndarray) -> None:
    model = graph(f"(uint8[n,{len(weights)}] a, uint8 z) => (int32[n,{weights.shape[1]}] y) {{ y = MatMulInteger(a, w, z) }}", w=weights)
    activations = worst_activations(weights)
    differ = any(not np.array_equal(pairwise(activations, weights, order), exact(activations, weights)) for order in ORDERS)
    product = only(model)
    assert (product.activations, product.weights, product.exact) == ("uint8", "int8", not differ)


def test_values_at_the_ends_of_fp32_are_rounded_and_what_is_not_finite_is_refused() -> None:
    for size in (3e38, 1e-38, 1e-45):
        values, scales = quantize_matrix(np.full((4, 2), size, np.float32), 1)
        assert np.isfinite(scales).all() and (np.abs(values * scales.astype(np.float64) - np.float64(np.float32(size))) <= scales).all()
    for bad in (np.nan, np.inf, -np.inf):
        model = graphs.plain(np.where(np.eye(32, dtype=bool), bad, 1).astype(np.float32))
        with pytest.raises(Permanent, match=r"the weight w can't be rounded to int8: it holds values that are not finite"):
            int8_rewriter.IntegerRewriter(model).rewrite()


def test_blocks_of_rows_are_looked_at_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(3).normal(size=(210, 13)).astype(np.float32)
    for channel, weight in ((1, matrix), (0, np.ascontiguousarray(matrix.T))):
        monkeypatch.undo()
        whole = quantize_matrix(weight, channel)
        monkeypatch.setattr(int8_rewriter, "_BLOCK", 40)
        for ours, theirs in zip(whole, quantize_matrix(weight, channel), strict=True):
            assert np.array_equal(ours, theirs)


FULL = np.full((16, 16), 127, np.int8)
SMALL = np.full((16, 16), 64, np.int8)
DYNAMIC = "q, s, z = DynamicQuantizeLinear(x)"
ZERO, ONE = np.array(0, np.int8), np.array(1, np.float32)
U8 = np.array(3, np.uint8)


@pytest.mark.parametrize(
    ("body", "weights", "kinds"),
    [
        (f"{DYNAMIC} y = MatMulInteger(q, w, z)", {}, ("uint8", "int8")),
        (f"{DYNAMIC} t = Transpose(w) y = MatMulInteger(q, t, z)", {}, ("uint8", "int8")),
        (f"{DYNAMIC} r = Reshape(q, shape) y = MatMulInteger(r, w)", {"shape": np.array([-1, 16])}, ("uint8", "int8")),
        ("y = com.microsoft.DynamicQuantizeMatMul(x, w, one)", {"one": ONE}, ("uint8", "int8")),
        (f"{DYNAMIC} y = com.microsoft.MatMulIntegerToFloat(q, w, s, one, z)", {"one": ONE}, ("uint8", "int8")),
        (
            "q = QuantizeLinear(x, one, u) f = DequantizeLinear(q, one, u) g = DequantizeLinear(w, one, zero) y = MatMul(f, g)",
            {"one": ONE, "u": U8, "zero": ZERO}, ("uint8", "int8"),
        ),
        (
            "q = QuantizeLinear(x, one) f = DequantizeLinear(q, one) t = Transpose(w) g = DequantizeLinear(t, one, zero) y = MatMul(f, g)",
            {"one": ONE, "zero": ZERO}, ("uint8", "int8"),
        ),
        (
            "q = QuantizeLinear(x, one, u) f = DequantizeLinear(q, one, u) g = DequantizeLinear(w, one, zero)"
            " y = Gemm <transB = 1> (f, g)",
            {"one": ONE, "u": U8, "zero": ZERO}, ("uint8", "int8"),
        ),
        (
            "q = QuantizeLinear(x, one, zero) f = DequantizeLinear(q, one, zero) g = DequantizeLinear(w, one, zero) y = MatMul(f, g)",
            {"one": ONE, "zero": ZERO}, ("int8", "int8"),
        ),
        (
            "q = QuantizeLinear(x, one, u) y = QLinearMatMul(q, one, u, w, one, zero, one, u)",
            {"one": ONE, "u": U8, "zero": ZERO}, ("uint8", "int8"),
        ),
    ],
)  # fmt: skip
def test_every_way_to_write_an_integer_product_is_found(body: str, weights: dict[str, np.ndarray], kinds: tuple[str, str]) -> None:
    text = f"(float[n,16] x) => (y) {{ {body} }}"
    for matrix, fits in ((FULL, False), (SMALL, True)):
        product = only(graph(text, w=matrix, **weights))
        assert (product.activations, product.weights) == kinds
        assert product.exact is fits


def test_the_axis_that_is_summed_over_is_the_one_that_is_looked_at() -> None:
    """Columns of one large weight each are fine; the same matrix turned has two in a row."""
    weights = np.zeros((4, 4), np.int8)
    weights[0] = 127
    for matrix, exact_ in ((weights, True), (weights.T.copy(), False)):
        model = graph("(uint8[n,4] a, uint8 z) => (int32[n,4] y) { y = MatMulInteger(a, w, z) }", w=matrix)
        turned = graph("(uint8[n,4] a, uint8 z) => (int32[n,4] y) { t = Transpose(w) y = MatMulInteger(a, t, z) }", w=matrix.T.copy())
        assert only(model).exact is only(turned).exact is exact_


def test_filters_count_as_neighbours_in_whatever_order() -> None:
    filters = np.zeros((2, 3, 2, 2), np.int8)
    filters[1, 0, 0, 0] = filters[1, 2, 1, 1] = -100
    product = only(graph("(uint8[n,3,8,8] x) => (y) { y = ConvInteger(x, w) }", w=filters))
    assert product.exact is False and product.largest == 255 * 200 and product.overflowing == 0.5


def test_unsigned_weights_and_fp32_are_exact_and_computed_ones_are_not_vouched_for() -> None:
    unsigned = examine([graph("(uint8[n,16] a, uint8 z) => (int32[n,16] y) { y = MatMulInteger(a, w, z, z) }", w=FULL.astype(np.uint8))])
    assert unsigned.fault is None and unsigned.needs == "any x86-64 or ARM64 processor"
    floats = examine([graph("(float[n,16] x) => (float[n,16] y) { y = MatMul(x, w) }", w=np.ones((16, 16), np.float32))])
    assert floats.fault is None and floats.figures is None
    computed = examine([graph("(uint8[n,16] a, int8[16,16] b) => (int32[n,16] y) { y = MatMulInteger(a, b) }")])
    assert computed.fault is not None and "computed" in computed.fault
    weights_alone = examine(
        [graph("(float[n,16] x) => (y) { g = DequantizeLinear(w, one, zero) y = MatMul(x, g) }", w=FULL, one=ONE, zero=ZERO)]
    )
    assert weights_alone.products == []


def test_what_is_wrong_is_said_with_figures() -> None:
    found = examine([graph("(uint8[n,16] a, uint8 z) => (int32[n,16] y) { y = MatMulInteger(a, w, z) }", w=FULL)])
    assert found.fault is not None
    assert all(text in found.fault for text in ("1 of 1 integer products", "100.0%", "y (MatMulInteger)", "can reach 64,770"))
    assert found.figures is not None and found.figures.written() == {
        "products": 1, "kinds": {"uint8 x int8": 1}, "largest_pair_sum": 64770, "pair_sum_limit": HIGHEST, "overflowing_products": 1,
        "unknown_products": 0,
    }  # fmt: skip
    assert found.needs != "any x86-64 or ARM64 processor"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert") / "source")


@pytest.mark.parametrize(("stage", "products"), [("int8", 12), ("int8_static", 12), ("int8_weight", 0), ("int4", 0), ("fp16", 0)])
def test_what_our_stages_write_is_right_on_every_processor(encoder: Path, tmp_path: Path, stage: str, products: int) -> None:
    made = derived(stage, encoder, tmp_path / "made")
    found = examine([ir.load(path) for path in sorted(made.folder.glob("*.onnx"))])
    assert found.fault is None and len(found.products) == products


def test_weights_of_the_whole_range_put_back_are_found_in_every_form(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_rewriter, "_largest_pairs", lambda block: np.zeros(block.shape[1], np.float32))
    for stage in ("int8", "int8_static"):
        made = derived(stage, encoder, tmp_path / stage)
        assert "overflow" in (examine([ir.load(made.folder / "model.onnx")]).fault or "")


def test_a_table_that_is_only_looked_up_keeps_the_whole_range() -> None:
    model = graph("(int64[n] rows) => (float[n,16] y) { y = Gather(table, rows) }", table=graphs.hostile_weights()[:64, :16].copy())
    int8_rewriter.IntegerRewriter(model).rewrite()
    values = graphs.initializer(model, ".int8.rows")
    assert (np.abs(values.astype(np.int16)).max(axis=1) == 127).all()


@pytest.mark.parametrize("scheme", [Scheme(4), Scheme(8)])
def test_rounding_rows_is_coarser_than_the_fast_level_and_no_finer_than_a_scale_a_row(scheme: Scheme) -> None:
    import onnxruntime

    from handlers.onnx.quantize.rewriters.weight_only_rewriter import round_rows

    weights, (_, call, _) = graphs.hostile_weights(), graphs.activations()
    model = graphs.blocks(weights, scheme, 1)
    round_rows(model)
    session = onnxruntime.InferenceSession(ir.serde.serialize_model(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": call})
    scale = np.abs(call).max(axis=1, keepdims=True) / np.float32(127)
    wanted = (np.rint(call / scale) * scale) @ graphs.dequantized(weights, scheme)
    assert np.abs(found - wanted).max() < 1e-4 * wanted.std()
