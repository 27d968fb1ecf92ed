"""4-bit graphs are about a sixth of the fp32 ones, compute what their dequantized weights say, and store a tied table once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest
from onnxruntime.capi import _pybind_state as kernels

from daemon.contract.faults.errors import Permanent
from handlers.graphs import graphset
from handlers.graphs.weights import pages
from handlers.onnx.quantize import accuracy_levels, weight_only
from handlers.onnx.quantize.accuracy_levels import EXACT, FAST, LevelMeasurement, choose
from handlers.onnx.quantize.rewriters.block_quantization import Blocks, Scheme, dequantize, quantize
from handlers.onnx.quantize.rewriters.weight_only_rewriter import WeightOnlyRewriter
from tests.onnx.conftest import Exported, Runner, prompts
from tests.onnx.small import TEXT, derived, distance, greedy_tokens, size, store, tensor
from tests.sampling import some

STEPS = (9, 1, 5)


@pytest.fixture(scope="session")
def qwen3_int4(qwen3: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The trained model with 4-bit weights, its accuracy level chosen by measurement. Read only."""
    return derived("int4", qwen3.folder, tmp_path_factory.mktemp("int4"))


def weights_of(model: ir.Model) -> dict[str, Blocks]:
    """Name of the values → the blocks of each matrix product, as they lie in the graph."""
    found = {}
    for node in model.graph.all_nodes():
        if node.op_type == "MatMulNBits":
            values, scales, zeros = [
                value.const_value.numpy() if value and value.const_value else None for value in (*node.inputs[1:4], None, None)[:3]
            ]
            assert values is not None and scales is not None
            bits, block_size, columns = (node.attributes.get_int(name, 0) for name in ("bits", "block_size", "K"))
            found[str(node.inputs[1].name)] = Blocks(values, scales, zeros, bits, block_size, columns)
    return found


def with_dequantized_weights(source: Path, quantized: Path, target: Path) -> Path:
    """The fp32 graph of `source` with the values of the weights that `quantized` holds in 4 or 8 bits."""
    blocks = weights_of(ir.load(quantized / "model.onnx"))
    model = ir.load(source / "model.onnx")
    for value in model.graph.initializers.values():
        for suffix, turned in (("", False), (".turned", True)):
            for bits in (4, 8):
                made = blocks.get(f"{value.name}.int{bits}{suffix}")
                if made is not None:
                    matrix = dequantize(made)
                    value.const_value = ir.tensor(np.ascontiguousarray(matrix.T if turned else matrix), name=value.name)
    target.mkdir()
    ir.save(model, target / "model.onnx")
    return target


# R2.1, R2.3, R10
def test_int4_is_about_a_sixth_of_fp32(qwen3: Exported, qwen3_int4: Exported) -> None:
    ratio = size(qwen3_int4.folder) / size(qwen3.folder)
    assert qwen3_int4.output.figures["size_ratio_to_onnx"] == pytest.approx(ratio, abs=1e-4)
    assert ratio < 0.21
    assert qwen3_int4.output.warnings == []


def test_every_matrix_is_in_4_bits_and_the_tied_table_is_stored_once(qwen3_int4: Exported) -> None:
    figures = qwen3_int4.output.figures
    assert figures["op_types"] == {"Gather": 1, "MatMul": 15}
    assert (figures["kept_fp32"], figures["shared_tables"]) == ({}, 1)
    proto = onnx.load(qwen3_int4.folder / "model.onnx")
    tables = [tensor for tensor in proto.graph.initializer if tensor.dims and tensor.dims[0] == 320 and tensor.data_type == 2]
    assert [list(table.dims) for table in tables] == [[320, 4, 16]]
    readers = {node.op_type for node in proto.graph.node if tables[0].name in node.input}
    assert readers == {"MatMulNBits", "Reshape"}


@pytest.mark.parametrize(("algorithm", "symmetric"), some([("rtn", False), ("rtn", True), ("hqq", True), ("k-quant", True)], of=2))
def test_it_computes_what_its_dequantized_weights_say(qwen3: Exported, tmp_path: Path, algorithm: str, symmetric: bool) -> None:
    made = derived("int4", qwen3.folder, tmp_path / "made", algorithm=algorithm, symmetric=symmetric, accuracy_level=1, block_size=64)
    plain = with_dequantized_weights(qwen3.folder, made.folder, tmp_path / "dequantized")
    ids, mask = prompts(2, 15, 3)
    real = mask.astype(bool)
    wanted, got, fp32 = (Runner(folder).logits(ids, mask, STEPS)[real] for folder in (plain, made.folder, qwen3.folder))
    assert np.abs(wanted - got).max() < 1e-4
    assert np.abs(fp32 - got).max() > 1e-2, "the comparison could not tell these weights from the fp32 ones"
    assert made.output.figures["symmetric"] is (algorithm == "rtn" and symmetric)


# R2.4
def test_it_still_says_what_the_model_has_learnt(qwen3: Exported, qwen3_int4: Exported) -> None:
    error, agreement = distance(qwen3.folder, qwen3_int4.folder)
    assert 0.001 < error < 0.15
    assert agreement > 0.9
    assert greedy_tokens(qwen3_int4.folder, TEXT, 1) == greedy_tokens(qwen3.folder, TEXT, 1)


def test_inputs_and_outputs_stay_the_same_and_nothing_is_left_over(qwen3: Exported, qwen3_int4: Exported) -> None:
    before, after = graphset.read(qwen3.folder).graphs[0], graphset.read(qwen3_int4.folder).graphs[0]
    assert (before.inputs, before.outputs) == (after.inputs, after.outputs)
    assert sorted(path.name for path in qwen3.folder.iterdir()) == sorted(path.name for path in qwen3_int4.folder.iterdir())


@pytest.mark.parametrize("algorithm", ["rtn", "k-quant", "hqq"])
@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_come_back_within_their_step(algorithm: Any, bits: Any) -> None:
    weight = np.random.default_rng(1).normal(size=(40, 72)).astype(np.float32) * np.logspace(-3, 2, 72, dtype=np.float32)
    weight[7], weight[8] = 0, 0.7
    blocks = quantize(weight, Scheme(bits, 32, False, algorithm))
    restored = dequantize(blocks)
    padded = np.pad(weight, ((0, 0), (0, 24))).reshape(40, 3, 32)
    spread = np.maximum(padded.max(-1), 0) - np.minimum(padded.min(-1), 0)
    step = np.repeat(spread / ((1 << bits) - 1), 32, -1).reshape(40, 96)[:, :72]
    assert (np.abs(restored - weight) <= 2 * step + 1e-6).all()
    assert np.abs(restored[7]).max() == 0 and np.abs(restored[8] - 0.7).max() < 1e-5


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("columns", "rows", "size"), [(1024, 1500, 32), (100, 77, 32), (64, 9, 16)])
def test_rounding_gives_the_bits_that_onnxruntimes_kernel_gives(
    columns: int, rows: int, size: int, bits: Any, symmetric: bool, threads: int
) -> None:
    """Halves of a step too, of which numbers in bf16 have many; a block of zeros, and one whose values are equal."""
    weight = (np.random.default_rng(0).standard_normal((columns, rows)) * 0.02).astype(ml_dtypes.bfloat16).astype(np.float32)
    weight[:size, 5], weight[:size, 6], weight[3, 7] = 0, 0.25, -5
    padded = np.pad(weight, ((0, -columns % size), (0, 0)))
    count, each = len(padded) // size, 8 // bits
    values, scales = np.zeros((rows, count, size // each), np.uint8), np.zeros((rows, count), np.float32)
    zeros = np.zeros((rows, -(-count // each)), np.uint8)
    kernel = kernels.quantize_matmul_4bits if bits == 4 else kernels.quantize_matmul_8bits
    kernel(values, padded, scales, zeros, size, rows, len(padded), symmetric)
    for stored in (weight.T, np.ascontiguousarray(weight.T)):
        found = quantize(stored, Scheme(bits, size, symmetric), threads)
        assert np.array_equal(found.values, values) and np.array_equal(found.scales, scales)
        assert found.zeros is None if symmetric else np.array_equal(found.zeros, zeros)  # type: ignore[arg-type]


def test_searching_algorithms_are_nearer_to_the_weights_than_rounding() -> None:
    weight = np.random.default_rng(1).standard_t(4, size=(128, 256)).astype(np.float32)
    errors = {
        name: float(np.square(dequantize(quantize(weight, Scheme(4, 32, False, name))) - weight).mean()) for name in ("rtn", "k-quant")
    }
    assert errors["k-quant"] < errors["rtn"]


def test_the_half_quadratic_quantizer_leaves_logging_as_it_is() -> None:
    level = logging.getLogger().level
    quantize(np.ones((16, 32), np.float32), Scheme(4, 32, True, "hqq"))
    assert logging.getLogger().level == level


def test_a_table_whose_rows_do_not_fill_their_blocks_is_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    table = rng.normal(size=(50, 40)).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (int64[n] i) => (float[n,40] e, float[n,50] y) '
        "{ e = Gather(t, i) u = Transpose<perm=[1,0]>(t) y = MatMul(e, u) }"
    )
    proto.graph.initializer.append(tensor("t", table))
    model = ir.from_proto(proto)
    counts = WeightOnlyRewriter(model, Scheme(4, 32, False), EXACT).rewrite()
    assert (counts.shared_tables, dict(counts.quantized)) == (1, {"Gather": 1, "MatMul": 1})
    ir.save(model, tmp_path / "model.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    rows = np.array([3, 49, 0])
    looked_up, product = session.run(None, {"i": rows})
    restored = dequantize(quantize(table, Scheme(4, 32, False)))
    assert looked_up.shape == (3, 40)
    assert np.abs(looked_up - restored[rows]).max() < 1e-6
    assert np.abs(product - restored[rows] @ restored.T).max() < 1e-4


def trial(error: float, milliseconds: float) -> LevelMeasurement:
    return LevelMeasurement(error, 1.0, milliseconds)


@pytest.mark.parametrize(
    ("exact", "fast", "level"),
    [
        (trial(0.05, 10), trial(0.055, 5), FAST),
        (trial(0.05, 10), trial(0.09, 5), EXACT),
        (trial(0.001, 10), trial(0.009, 5), FAST),
        (trial(0.05, 10), trial(0.05, 20), EXACT),
        (trial(0.05, 10), trial(float("inf"), 5), EXACT),
        (trial(0.0266, 116), trial(0.0365, 26), FAST),
        (trial(0.05, 116), trial(0.11, 26), EXACT),
        (trial(0.05, 10), trial(float("nan"), 5), EXACT),
    ],
)
def test_the_fast_level_is_taken_where_it_is_as_good_or_a_little_worse_and_much_faster(
    exact: LevelMeasurement, fast: LevelMeasurement, level: int
) -> None:
    assert choose({EXACT: exact, FAST: fast}).level == level


def levels_in(folder: Path) -> set[int]:
    nodes = onnx.load(folder / "model.onnx", load_external_data=False).graph.node
    return {attribute.i for node in nodes for attribute in node.attribute if attribute.name == "accuracy_level"}


def test_both_levels_are_measured_and_the_chosen_one_is_in_the_graph(qwen3_int4: Exported) -> None:
    figures = qwen3_int4.output.figures
    trials = figures["accuracy_level_trials"]
    assert isinstance(trials, dict) and set(trials) == {"1", "4"}
    assert trials["1"]["error"] != trials["4"]["error"], "both were measured on the same graph"
    assert levels_in(qwen3_int4.folder) == {figures["accuracy_level"]}


# R2.5
@pytest.mark.parametrize("level", [EXACT, FAST])
def test_whichever_level_measures_better_is_kept(qwen3: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    monkeypatch.setattr(accuracy_levels, "WORSE", 0.0 if level == EXACT else 10.0)
    monkeypatch.setattr(accuracy_levels, "MUCH_FASTER", 1e9)
    monkeypatch.setattr(accuracy_levels, "NEGLIGIBLE", 0.0)
    monkeypatch.setattr(accuracy_levels, "SLOWER", 1e9)
    made = derived("int4", qwen3.folder, tmp_path)
    assert levels_in(made.folder) == {level} == {made.output.figures["accuracy_level"]}
    assert not [path for path in made.folder.iterdir() if path.suffix == ".level"]


def test_answers_over_a_large_vocabulary_are_measured_from_a_file(
    qwen3: Exported, qwen3_int4: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_only, "LARGE", 1)
    monkeypatch.setattr(accuracy_levels.pages, "release", let_go := Mock(wraps=pages.release))
    made = derived("int4", qwen3.folder, tmp_path)
    assert {one.args[0].filename.name for one in let_go.mock_calls} == {"answers"}

    def errors(figures: Mapping[str, Any]) -> dict[str, float]:
        return {level: trial["error"] for level, trial in figures["accuracy_level_trials"].items()}

    assert errors(made.output.figures) == errors(qwen3_int4.output.figures)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pages_of_a_map_that_begins_anywhere_are_released_and_read_again(tmp_path: Path, dtype: type) -> None:
    path, offset = tmp_path / "file", 5000
    content = np.random.default_rng(0).integers(0, 255, (64 << 20) + offset, np.uint8)
    content.tofile(path)
    mapped = np.memmap(path, dtype, "r", offset)

    def held() -> int:
        (mine,) = (one for one in psutil.Process().memory_maps() if one.path == str(path))
        return int(mine.rss)

    assert (mapped.view(np.uint8) == content[offset:]).all() and held() >= 64 << 20
    pages.release(mapped)
    assert held() == 0
    assert (mapped.view(np.uint8) == content[offset:]).all()


def test_a_level_that_is_asked_for_is_not_measured(qwen3: Exported, tmp_path: Path) -> None:
    made = derived("int4", qwen3.folder, tmp_path, accuracy_level=4)
    assert levels_in(made.folder) == {4}
    assert "accuracy_level_trials" not in made.output.figures


def test_without_a_tokenizer_the_exact_level_is_taken_and_said_so(qwen3: Exported, tmp_path: Path) -> None:
    source = store(tmp_path / "source", {"model": onnx.load(qwen3.folder / "model.onnx")})
    made = derived("int4", source, tmp_path / "made")
    (fallback,) = made.output.fallbacks
    assert "tokenizer.json" in fallback.reason and levels_in_file(made.folder / "model.onnx") == {EXACT}


def levels_in_file(path: Path) -> set[int]:
    return levels_in(path.parent)


def test_graphs_that_share_weights_share_them_in_4_bits_too(tmp_path: Path) -> None:
    """Two graphs of one folder, one of which stores the matrix that both use; the derived folder holds one copy."""
    weight = np.random.default_rng(3).normal(size=(64, 256)).astype(np.float32)
    graphs = {}
    for role, operator in (("decoder", "Relu"), ("decoder_with_past", "Neg")):
        proto = onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["" : 18]> g (float[n,64] x) => (float[n,256] y) {{ h = {operator}(x) y = MatMul(h, w) }}'
        )
        proto.graph.initializer.append(tensor("w", weight))
        graphs[role] = proto
    source = store(tmp_path / "source", graphs)
    made = derived("int4", source, tmp_path / "made", accuracy_level=1)
    both = graphset.read(made.folder)
    (data,) = {name for graph in both.graphs for name in graph.data}
    assert (made.folder / data).stat().st_size < 1.5 * (weight.size * 0.5 + weight.size / 32 * 4)
    assert made.output.figures["op_types"] == {"MatMul": 2}


def test_branches_of_a_graph_are_quantized_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    weight = rng.normal(size=(64, 32)).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (bool c, float[n,64] x) => (float[n,32] y) '
        "{ y = If(c) <then_branch = a () => (float[n,32] p) { p = MatMul(x, w) }, "
        "else_branch = b () => (float[n,32] q) { h = Neg(x) q = MatMul(h, w) }> }"
    )
    proto.graph.initializer.append(tensor("w", weight))
    model = ir.from_proto(proto)
    scheme = Scheme(4, 32, True)
    assert dict(WeightOnlyRewriter(model, scheme, EXACT).rewrite().quantized) == {"MatMul": 2}
    ir.save(model, tmp_path / "model.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    x = rng.normal(size=(3, 64)).astype(np.float32)
    restored = dequantize(quantize(weight.T, scheme)).T
    for branch, sign in ((True, 1), (False, -1)):
        (y,) = session.run(None, {"c": np.array(branch), "x": x})
        assert np.abs(y - sign * x @ restored).max() < 1e-4


def test_a_folder_without_weights_to_turn_is_refused(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Add(x, x) }')
    with pytest.raises(Permanent, match="no matrix product with a constant weight was found"):
        derived("int4", store(tmp_path / "source", {"model": proto}), tmp_path / "made")
