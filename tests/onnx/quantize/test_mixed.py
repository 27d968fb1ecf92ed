"""onnx-mixed has as few bits as its limits allow: the search is near the best choice, its measurement is what the graphs then do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.options import Target
from handlers.folder.playback import tokenize
from handlers.graphs import graphset
from handlers.onnx.mixed import stage
from handlers.onnx.mixed.search import LEVELS, Bits, BudgetMissed, Choice, Cost, search
from handlers.onnx.mixed.summary import summarize
from handlers.onnx.mixed.trial import Trial
from handlers.onnx.mixed.weights import find, grouped, layer_of
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.rewriters.block_quantization import Scheme
from tests import models
from tests.onnx.conftest import Exported, make_context, silent
from tests.onnx.small import bert, distance

Costs = list[tuple[float, int]]
"""Divergence of each layer in 4 bits, and its number of weights."""
LAYERS = st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 1000)), min_size=1, max_size=6)


def priced(layers: Costs) -> tuple[list[Cost], Callable[[Bits], float]]:
    """A model whose layers' divergences add up, each a hundredth in 8 bits."""
    costs = [Cost(f"layer {number}", {bits: weights * bits // 8 + bits for bits in LEVELS}) for number, (_, weights) in enumerate(layers)]
    share = {4: 1.0, 8: 0.01, 32: 0.0}
    return costs, lambda bits: sum(value * share[bits[f"layer {number}"]] for number, (value, _) in enumerate(layers))


def size_of(costs: list[Cost], bits: Bits) -> int:
    return sum(cost.bytes[bits[cost.name]] for cost in costs)


@given(LAYERS, st.floats(1e-7, 2.0))
def test_the_search_keeps_to_the_divergence_and_comes_near_the_smallest(layers: Costs, limit: float) -> None:  # R2.5
    costs, measure = priced(layers)
    found = search(costs, measure, divergence=limit, size=None)
    assert found.divergence == measure(found.bits) <= limit
    assert found.size == size_of(costs, found.bits)
    assert found.trials <= len(layers) + 2 + np.log2(2 * len(layers) + 1) + 1
    grid = [dict(zip([cost.name for cost in costs], bits, strict=True)) for bits in itertools.product(LEVELS, repeat=len(costs))]
    best = min(size_of(costs, bits) for bits in grid if measure(bits) <= limit)
    if limit >= measure({cost.name: 8 for cost in costs}):  # the last raise, to fp32, is ordered by what 4 bits cost
        # A queue by gain for each byte misses the best choice by less than one layer.
        assert found.size - best <= max(cost.bytes[8] - cost.bytes[4] for cost in costs)


@given(LAYERS, st.integers(1, 20_000))
def test_with_a_size_alone_the_most_exact_choice_that_fits_is_taken(layers: Costs, limit: int) -> None:
    costs, measure = priced(layers)
    try:
        found = search(costs, measure, divergence=None, size=limit)
    except BudgetMissed as missed:
        assert missed.best is None and size_of(costs, {cost.name: 4 for cost in costs}) > limit
        return
    assert found.size <= limit
    more = [{**found.bits, cost.name: 8} for cost in costs if found.bits[cost.name] == 4]
    assert not more or size_of(costs, more[-1]) > 0  # there may be room for a smaller layer further back, never for the next one
    raised = sum(LEVELS.index(bits) for bits in found.bits.values())
    assert raised == 2 * len(costs) or found.size + max(cost.bytes[32] for cost in costs) > limit


@given(LAYERS, st.floats(1e-7, 2.0), st.integers(1, 20_000))
def test_what_both_limits_exclude_is_told_with_the_best_that_is_small_enough(layers: Costs, divergence: float, size: int) -> None:
    costs, measure = priced(layers)
    try:
        found = search(costs, measure, divergence=divergence, size=size)
    except BudgetMissed as missed:
        assert missed.needed > size
        assert missed.best is None or (missed.best.size <= size and missed.best.divergence > divergence)
        return
    assert found.divergence <= divergence and found.size <= size


def test_what_an_earlier_checkpoint_cost_is_not_measured_again() -> None:
    costs, measure = priced([(0.5, 10), (0.1, 20), (0.01, 30), (0.2, 40)])
    first = search(costs, measure, divergence=0.05, size=None)
    again = search(costs, measure, divergence=0.05, size=None, known=first.sensitivity)
    assert again.bits == first.bits and again.trials == first.trials - len(costs)
    other = search(costs, measure, divergence=0.05, size=None, known={"layer 9": 1.0})
    assert other.trials == first.trials, "what does not name all layers is of another model"


@pytest.mark.parametrize(("key", "layer"), [
    ("model.layers.12.self_attn.q_proj.weight", "layer 12"), ("transformer.h.3.attn.c_attn.weight", "layer 3"),
    ("bert.encoder.layer.0.output.dense.weight", "encoder layer 0"), ("model.decoder.layers.1.fc1.weight", "decoder layer 1"),
    ("decoder.block.2.layer.1.EncDecAttention.q.weight", "decoder layer 2"), ("lm_head.weight", "lm_head"),
    ("model.onnx:val_91", "model.onnx:val_91"),
])  # fmt: skip
def test_a_parameters_layer_is_read_from_its_name(key: str, layer: str) -> None:
    assert layer_of(key) == layer


def context_of(source: Path, onnx: Path, folder: Path, kl: float = 0.0, size: str = "", **options: object) -> StageContext:
    context = make_context(folder, "onnx-mixed", {"onnx": onnx, "merge": source}, source)
    work = context.work.with_options(OnnxOptions.model_validate({"accuracy_level": 1, **options}))
    return context.model_copy(
        update={"work": work.model_copy(update={"export": work.export.model_copy(update={"target": Target(kl=kl, size=size)})})}
    )


def bits_of(folder: Path) -> dict[str, int]:
    """Layer → bits, as the artifact says."""
    return {one["name"]: one["bits"] for one in json.loads((folder / stage.FILE).read_bytes())["layers"]}


def made(context: StageContext) -> tuple[Path, dict[str, object]]:
    output = stage.run(context, silent())
    return Path(context.staging), output.figures


# R2.5, R2.1
def test_a_limit_of_divergence_is_kept_and_the_graph_does_what_was_measured(qwen3: Exported, trained: Path, tmp_path: Path) -> None:
    everywhere, first = made(context_of(trained, qwen3.folder, tmp_path / "everywhere", kl=10.0))
    lowest = first["kl_with_4_bits_everywhere"]
    assert isinstance(lowest, float) and set(bits_of(everywhere).values()) == {4}
    context = context_of(trained, qwen3.folder, tmp_path / "made", kl=lowest / 3)
    folder, figures = made(context)
    assert figures["kl_on_calibration"] <= lowest / 3
    bits = bits_of(folder)
    assert set(bits.values()) == {4, 8}, bits
    assert "It keeps" in str(figures["told"]) and "with 4 bits everywhere" in str(figures["told"])
    kinds = {
        node.attributes.get_int("bits", 0) for node in ir.load(folder / "model.onnx").graph.all_nodes() if node.op_type == "MatMulNBits"
    }
    assert kinds == {4, 8}
    assert distance(qwen3.folder, folder)[0] < distance(qwen3.folder, everywhere)[0]
    # The trial's figure is that of the graph that was written.
    source = graphset.read(qwen3.folder)
    weights = find(qwen3.folder, source, trained)
    rows = tokenize(qwen3.folder, models.TEXTS).rows[:2]
    trial = Trial(qwen3.folder, source, weights, rows, {number: Scheme(number, 32, symmetric=False) for number in (4, 8)}, 1)
    by_key = {key: bits[group.name] for group in grouped(weights) for key in group.keys}
    expected = trial.divergence(by_key)
    assert trial.divergence(dict.fromkeys(by_key, 32)) == 0
    assert expected == pytest.approx(_divergence(qwen3.folder, folder, rows), rel=0.02)


def _divergence(source: Path, smaller: Path, rows: list[list[int]]) -> float:
    """Mean KL of two folders over all positions of the texts, by their own sessions."""
    from handlers.folder.playback import Player
    from handlers.validate.arithmetic.comparison import Comparison

    comparison = Comparison()
    for row in rows:
        for mine, theirs in zip(
            Player(source, graphset.read(source), 1).play(row), Player(smaller, graphset.read(smaller), 1).play(row), strict=True
        ):
            comparison.add(mine.outputs["logits"][0], theirs.outputs["logits"][0])
    found = comparison.figures(1.0).kl
    assert found is not None
    return found


@pytest.mark.slow
def test_the_layer_that_4_bits_hurt_most_is_the_one_that_is_kept(trained: Path, export: Callable[..., Exported], tmp_path: Path) -> None:
    """Factors that differ within each block make it coarse, while the product of the two matrices stays what it was."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    source = tmp_path / "source"
    shutil.copytree(trained, source)
    tensors = load_file(source / "model.safetensors")
    up, down = "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"
    generator = torch.Generator().manual_seed(1)
    factors = torch.logspace(-3, 3, tensors[up].shape[0])[torch.randperm(tensors[up].shape[0], generator=generator)]
    tensors[up] = (tensors[up].float() * factors[:, None]).to(tensors[up].dtype)
    tensors[down] = (tensors[down].float() / factors).to(tensors[down].dtype).contiguous()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    exported = export(source)
    context = context_of(source, exported.folder, tmp_path / "made", kl=0.01)
    folder, figures = made(context)
    sensitivity = figures["sensitivity"]
    assert isinstance(sensitivity, dict) and next(iter(sensitivity)) == "layer 1"
    assert bits_of(folder)["layer 1"] > 4
    assert "layer" in str(figures["told"]) and "1" in str(figures["told"])
    output = stage.run(
        context_of(source, exported.folder, tmp_path / "again", kl=0.01).model_copy(update={"cache": context.cache}), silent()
    )
    assert output.figures["sensitivity_reused"] is True and output.figures["bits"] == figures["bits"]
    (notes,) = Path(context.cache).rglob("*.json")
    notes.write_text("[1, 2")
    output = stage.run(
        context_of(source, exported.folder, tmp_path / "third", kl=0.01).model_copy(update={"cache": context.cache}), silent()
    )
    assert output.figures["sensitivity_reused"] is False


def test_a_size_alone_gives_the_most_exact_graphs_that_are_no_larger(qwen3: Exported, trained: Path, tmp_path: Path) -> None:
    stored = sum(path.stat().st_size for path in trained.glob("*.safetensors"))
    folder, _ = made(context_of(trained, qwen3.folder, tmp_path / "made", size="0.6x"))
    assert graphset.read(folder).size(folder) <= 0.6 * stored
    assert 8 in bits_of(folder).values()
    tiny = context_of(trained, qwen3.folder, tmp_path / "tiny", size="0.1x")
    with pytest.raises(Permanent, match=r"even with 4 bits in all layers the graphs take \d+ bytes") as error:
        stage.run(tiny, silent())
    assert error.value.fault.code == "budget-missed"
    both = context_of(trained, qwen3.folder, tmp_path / "both", kl=1e-7, size="0.5x")
    with pytest.raises(Permanent, match="at that size the divergence is"):
        stage.run(both, silent())


@pytest.mark.slow
def test_where_4_bits_suffice_everywhere_it_is_no_larger_than_onnx_int4(qwen3: Exported, trained: Path, tmp_path: Path) -> None:
    from handlers.onnx.quantize.weight_only import int4

    def zero_points(folder: Path) -> int:
        nodes = [node for node in ir.load(folder / "model.onnx").graph.all_nodes() if node.op_type == "MatMulNBits"]
        return sum(len(node.inputs) > 3 and node.inputs[3] is not None for node in nodes)

    options = {"block_size": 32, "symmetric": True}
    mixed, figures = made(context_of(trained, qwen3.folder, tmp_path / "mixed", kl=10.0, **options))
    context = make_context(tmp_path / "int4", "onnx-int4", {"onnx": qwen3.folder, "merge": trained}, trained)
    work = context.work.with_options(OnnxOptions.model_validate({"accuracy_level": 1, **options}))
    int4(context.model_copy(update={"work": work}), silent())
    plain = Path(context.staging)
    assert zero_points(mixed) == zero_points(plain) == 0
    assert graphset.read(mixed).size(mixed) <= graphset.read(plain).size(plain)
    said = json.loads((mixed / stage.FILE).read_bytes())
    assert said["schemes"]["4"]["symmetric"] is True
    assert said["divergence_nats"] == figures["kl_on_calibration"] == figures["kl_with_4_bits_everywhere"]
    # What only zero points keep to gets them: the limit lies between the two.
    other, found = made(context_of(trained, qwen3.folder, tmp_path / "other", kl=10.0, block_size=32, symmetric=False))
    assert zero_points(other) > 0
    limits = sorted([float(str(figures["kl_on_calibration"])), float(str(found["kl_on_calibration"]))])
    between, _ = made(context_of(trained, qwen3.folder, tmp_path / "between", kl=sum(limits) / 2, **options))
    assert (zero_points(between) > 0) == (found["kl_on_calibration"] == limits[0])


def test_a_limit_that_leaves_no_weight_smaller_is_told(qwen3: Exported, trained: Path, tmp_path: Path) -> None:
    context = context_of(trained, qwen3.folder, tmp_path / "made", kl=1e-15)
    with pytest.raises(Permanent, match=r"export\.target\.kl is 1e-15, and no layer can have fewer than 32 bits") as error:
        stage.run(context, silent())
    assert error.value.fault.code == "budget-missed"


def test_an_encoder_is_measured_by_its_vectors(tmp_path: Path) -> None:
    onnx = bert(tmp_path / "bert")
    context = context_of(onnx, onnx, tmp_path / "made", kl=1e-4)
    context = context.model_copy(update={"inputs": {"onnx": str(onnx)}})
    folder, figures = made(context)
    assert isinstance(figures["kl_on_calibration"], float) and figures["kl_on_calibration"] <= 1e-4
    assert distance(onnx, folder)[0] < 0.1


def test_a_choice_is_told_in_a_sentence() -> None:
    layers = {f"layer {number}": 0.01 for number in range(20)}
    few = Choice({**dict.fromkeys(layers, 4), "layer 3": 8, "layer 12": 8}, 0.06, 0.21, 10, {**layers, "layer 3": 0.2, "layer 12": 0.1}, 9)
    assert summarize(few) == (
        "It keeps layers 3, 12 in 8 bits, which cost 62% of the divergence in 4 bits (0.21 nats with 4 bits everywhere, 0.06 so)."
    )
    many = Choice({**dict.fromkeys(layers, 8), "lm_head": 32}, 0.001, 0.21, 10, {**layers, "lm_head": 0.1}, 9)
    assert summarize(many) == (
        "It keeps 20 layers (0, 1, 2, 3, …) in 8 bits and lm_head in fp32 (0.21 nats with 4 bits everywhere, 0.001 so)."
    )
    assert summarize(Choice(dict.fromkeys(layers, 4), 0.01, 0.01, 10, {}, 1)) == ""
