"""Graphs become smaller step by step, and go on saying the same under the same names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from handlers.graphs import graphset
from handlers.onnx.optimize.judging import acceptance, equivalence
from handlers.onnx.optimize.judging.random_inputs import Maker, RandomInputs, UnknownInputError
from handlers.onnx.optimize.weightless import hide
from tests.onnx.conftest import SMALL, Exported, Runner, make_model, prompts, quantize, torch_logits
from tests.onnx.optimize.optimizing import assert_in_order, assert_same, content, copied, of, run
from tests.onnx.test_encoders import make as make_encoder

pytestmark = pytest.mark.slow

GPT2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "initializer_range": 0.15}
MARIAN = {
    "vocab_size": 320, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0, "init_std": 0.15,
}  # fmt: skip


def spread(folder: Path, model: Any) -> Path:
    """Save a model whose norms and biases are not the trivial ones, which an optimizer may leave out."""
    import torch

    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import transformers

    folder = make_model(tmp_path_factory.mktemp("gpt2"), "GPT2LMHead", **GPT2)
    return export(spread(folder, transformers.GPT2LMHeadModel.from_pretrained(folder)))


@pytest.fixture(scope="module")
def llama(export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import transformers

    folder = make_model(tmp_path_factory.mktemp("llama"), "Llama", **SMALL)
    return export(spread(folder, transformers.LlamaForCausalLM.from_pretrained(folder)))


@pytest.fixture(scope="module")
def bert(export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return export(make_encoder(tmp_path_factory.mktemp("bert"), "Bert", "text-classification"))


@pytest.fixture(scope="module")
def marian(export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    import torch
    import transformers

    torch.manual_seed(3)
    return export(spread(tmp_path_factory.mktemp("marian"), transformers.MarianMTModel(transformers.MarianConfig(**MARIAN))))


MODELS = ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3", "llama", "gpt2"))]
"""What is exported for this file alone takes a while; the fast tests see one encoder."""
FUSED = {
    "qwen3": {"SkipSimplifiedLayerNormalization", "GroupQueryAttention"},
    "llama": {"SkipSimplifiedLayerNormalization", "GroupQueryAttention"},
    "gpt2": {"FastGelu", "GroupQueryAttention"},
    "bert": {"BiasGelu", "MultiHeadAttention", "SkipLayerNormalization"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(FUSED))
def test_every_level_keeps_answers_names_axes_and_facts(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:  # R3.4
    source: Exported = request.getfixturevalue(name)
    counts = [sum(one.nodes for one in graphset.read(source.folder).graphs)]
    for level in ("basic", "extended", "all"):
        folder = copied(source, tmp_path / level)
        optimized = run(folder, level)
        assert_in_order(source.folder, folder, optimized.graphs)
        assert_same(source.folder, folder)
        counts.append(sum(one.nodes for one in optimized.graphs.graphs))
        foreign = set(acceptance.foreign(ir.load(folder / "model.onnx")))
        assert foreign >= FUSED[name] if level != "basic" else not foreign
        assert all(report.kept or report.reason for report in optimized.reports)
    assert counts == sorted(counts, reverse=True) and counts[1] < counts[0] and counts[2] < 0.9 * counts[0]


@pytest.mark.slow
def test_all_graphs_of_an_encoder_decoder_are_optimized_and_go_on_sharing_their_weights(marian: Exported, tmp_path: Path) -> None:
    folder = copied(marian, tmp_path)
    optimized = run(folder)
    assert_in_order(marian.folder, folder, optimized.graphs)
    assert_same(marian.folder, folder)
    assert optimized.bytes_after < optimized.bytes_before
    for before, after in zip(graphset.read(marian.folder).graphs, optimized.graphs.graphs, strict=True):
        assert after.nodes < 0.9 * before.nodes and after.data == ("model.onnx.data",)


@pytest.mark.slow
def test_an_optimized_graph_says_what_torch_says(qwen3: Exported, tmp_path: Path) -> None:
    folder = copied(qwen3, tmp_path)
    run(folder, "all")
    ids, mask = prompts(3, 12, 4)
    found, wanted = Runner(folder).logits(ids, mask, (7, 1, 4)), torch_logits(qwen3.source, ids, mask)
    assert np.abs(found - wanted)[mask.astype(bool)].max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.slow
def test_level_none_touches_nothing(bert: Exported, tmp_path: Path) -> None:
    folder = copied(bert, tmp_path)
    assert run(folder, "none").reports == ()
    assert content(folder) == content(bert.folder)


@pytest.mark.parametrize("name", MODELS)
def test_int8_finds_as_many_weights_after_the_fusions_as_before(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: Exported = request.getfixturevalue(name)
    folder = copied(source, tmp_path)
    run(folder, "all")
    before, after = (quantize(one, tmp_path / label).output.figures for one, label in ((source.folder, "before"), (folder, "after")))
    assert after["quantized_nodes"] == before["quantized_nodes"] > 0
    assert after["size_ratio_to_onnx"] == pytest.approx(before["size_ratio_to_onnx"], abs=0.05)


def test_projections_vanish_in_a_packed_attention_only_where_no_other_stage_needs_them(bert: Exported, tmp_path: Path) -> None:
    shutil.copytree(bert.folder, tmp_path / "kept")
    shutil.copytree(bert.folder, tmp_path / "packed")
    report = of(run(tmp_path / "kept", "all"), "pack-attention")
    assert not report.kept and "can still be quantized" in report.reason
    optimized = run(tmp_path / "packed", "all", derived=False)
    assert of(optimized, "pack-attention").kept and of(optimized, "pack-attention").fused == {"Attention": 2}
    assert optimized.bytes_after < optimized.bytes_before, "the matrices are joined, not written twice"
    proto = onnx.load(tmp_path / "packed" / "model.onnx")
    packed = {node.input[1] for node in proto.graph.node if node.op_type == "Attention"}
    assert packed <= {weight.name for weight in proto.graph.initializer}, "joined once, not at each start"
    assert_same(bert.folder, tmp_path / "packed")


def assert_fed(source: Exported) -> None:
    for graph in graphset.read(source.folder).graphs:
        maker = Maker(graph, json.loads((source.folder / "config.json").read_text()))
        cases = maker.cases()
        assert all(set(case.feeds) == {port.name for port in graph.inputs} for case in cases)
        assert {len(case.feeds["input_ids"]) for case in cases} > {1}
        assert any(not mask.all() for case in cases for mask in case.real.values())
        if maker.cached:
            name = next(port.name for port in graph.inputs if port.name.startswith("past"))
            pasts = {case.feeds[name].shape[2] for case in cases}
            assert max(pasts) == 40 and (0 in pasts) != maker.needs_past
        assert set(maker.speed()) == ({"decode"} if maker.needs_past else {"prefill", "decode"} if maker.cached else {"prefill"})


@pytest.mark.slow
def test_inputs_are_made_for_every_port(qwen3: Exported, bert: Exported) -> None:
    assert_fed(qwen3)
    assert_fed(bert)


@pytest.mark.slow
def test_inputs_are_made_for_every_graph_of_an_encoder_decoder(marian: Exported) -> None:
    assert_fed(marian)


def test_an_unknown_input_is_an_error(bert: Exported) -> None:
    graph = graphset.read(bert.folder).graphs[0]
    strange = graphset.Port(name="phases", dtype="int64", shape=("batch", "sequence"))
    with pytest.raises(UnknownInputError, match="phases"):
        Maker(graph.model_copy(update={"inputs": (*graph.inputs, strange)}), {"vocab_size": 9}).cases()


def test_matrices_are_hidden_from_tools_and_come_back(qwen3: Exported) -> None:
    model = ir.load(qwen3.folder / "model.onnx")
    before = {name: value.const_value.numpy().tobytes() for name, value in model.graph.initializers.items() if value.const_value}
    inputs = [value.name for value in model.graph.inputs]
    hidden = hide(model)
    assert hidden.proto.ByteSize() < 0.1 * (qwen3.folder / "model.onnx").stat().st_size
    back = hidden.restore(hidden.proto)
    assert [value.name for value in back.graph.inputs] == inputs
    assert {name: value.const_value.numpy().tobytes() for name, value in back.graph.initializers.items() if value.const_value} == before


def test_padding_may_say_anything_but_nothing_infinite() -> None:
    port = graphset.Port(name="logits", dtype="float32", shape=("batch", "sequence", 2))
    case = RandomInputs("a case", {}, {"sequence": np.array([[False, True]])})
    before = np.ones((1, 2, 2), np.float32)
    after = before.copy()
    after[0, 0] = 5
    assert equivalence.difference([port], [before], [after], case) == 0
    after[0, 0] = np.nan
    with pytest.raises(equivalence.UnequalError, match="not finite"):
        equivalence.difference([port], [before], [after], case)
    with pytest.raises(equivalence.UnequalError, match="differs"):
        equivalence.difference([port], [before], [before + np.float32(1e-3)], case)
