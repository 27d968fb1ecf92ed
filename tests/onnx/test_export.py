"""The onnx stage gives one graph that says what torch says, whatever the lengths, under the names that runtimes expect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from handlers.graphs import graph_file
from handlers.onnx.export import stage
from tests.onnx.conftest import SMALL, Exported, Runner, make_context, make_model, prompts, silent, torch_logits

SHAPES = [
    (1, (1, 1, 1), 0),
    (1, (9, 1, 1), 0),
    (3, (6, 1, 1, 1), 2),
    (4, (17, 5, 1), 8),
]


def assert_equal_to_torch(exported: Exported, batch: int, steps: tuple[int, ...], padding: int) -> None:
    ids, mask = prompts(batch, sum(steps), padding)
    got, wanted = Runner(exported.folder).logits(ids, mask, steps), torch_logits(exported.source, ids, mask)
    real = mask.astype(bool)
    assert np.isfinite(got).all()
    assert np.abs(got - wanted)[real].max() <= 1e-4


# R3.1, R3.2
@pytest.mark.parametrize(("batch", "steps", "padding"), SHAPES)
def test_prefill_and_decoding_agree_with_torch_at_any_batch_and_length(
    qwen3: Exported, batch: int, steps: tuple[int, ...], padding: int
) -> None:
    assert_equal_to_torch(qwen3, batch, steps, padding)


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "steps", "padding"), SHAPES)
@pytest.mark.parametrize("kind", ["Llama", "GPT2LMHead", "Mistral"])
def test_other_families_agree_with_torch_too(
    families: dict[str, Exported], kind: str, batch: int, steps: tuple[int, ...], padding: int
) -> None:
    assert_equal_to_torch(families[kind], batch, steps, padding)


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory, export: Callable[..., Exported]) -> dict[str, Exported]:
    folder = tmp_path_factory.mktemp("families")
    gpt2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
    sliding = {**SMALL, "sliding_window": 8}
    kinds = {"Llama": SMALL, "GPT2LMHead": gpt2, "Mistral": sliding}
    return {kind: export(make_model(folder / kind, kind, **options)) for kind, options in kinds.items()}


# R3.1
def test_axes_are_called_batch_sequence_past_and_total(qwen3: Exported) -> None:
    model = onnx.load(qwen3.folder / "model.onnx")
    axes = {
        value.name: [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert axes == {
        "input_ids": ["batch", "sequence"],
        "attention_mask": ["batch", "total"],
        "position_ids": ["batch", "sequence"],
        **{f"past_key_values.{layer}.{kind}": ["batch", 2, "past", 16] for layer in range(2) for kind in ("key", "value")},
        "logits": ["batch", "sequence", 320],
        **{f"present.{layer}.{kind}": ["batch", 2, "total", 16] for layer in range(2) for kind in ("key", "value")},
    }
    inner = {dimension.dim_param for value in model.graph.value_info for dimension in value.type.tensor_type.shape.dim}
    assert inner <= {"", "batch", "sequence", "past", "total"}


# R3.3
def test_the_file_alone_says_where_it_comes_from(qwen3: Exported) -> None:
    model = onnx.load(qwen3.folder / "model.onnx")
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert model.producer_name == "ckptd"
    wanted = {"run": "demo", "step": "4", "base": "org/pico", "opset": "18", "model_type": "qwen3", "dtype": "float32"}
    assert {key: facts[f"ckptd.{key}"] for key in wanted} == wanted


def test_the_graph_holds_no_paths_of_the_machine_that_made_it(qwen3: Exported) -> None:
    assert b"site-packages" not in (qwen3.folder / "model.onnx").read_bytes()


def test_the_folder_is_complete_and_holds_nothing_else(qwen3: Exported) -> None:
    assert sorted(path.name for path in qwen3.folder.iterdir()) == [
        "chat_template.jinja", "chat_template.py", "config.json", "example.py", "generation_config.json", "graphs.json", "model.onnx",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    written, source = (json.loads((folder / "config.json").read_text()) for folder in (qwen3.folder, qwen3.source))
    assert written == {**source, "rope_theta": source["rope_parameters"]["rope_theta"], "torch_dtype": source["dtype"]}


def test_a_tied_embedding_is_stored_once(qwen3: Exported) -> None:
    parameters = sum(path.stat().st_size for path in qwen3.source.glob("*.safetensors")) / 2
    assert parameters * 4 < (qwen3.folder / "model.onnx").stat().st_size < parameters * 4 + 90_000
    vocabulary = [list(tensor.dims) for tensor in onnx.load(qwen3.folder / "model.onnx").graph.initializer if 320 in tensor.dims]
    assert vocabulary == [[320, 128]]


def test_figures_say_what_the_graph_is(qwen3: Exported) -> None:
    figures = qwen3.output.figures
    assert (qwen3.output.strategy, qwen3.output.fallbacks, figures["attention"], figures["opset"]) == ("dynamo-eager", [], "eager", 18)
    assert figures["nodes"] == len(onnx.load(qwen3.folder / "model.onnx").graph.node)
    assert figures["graph_bytes"] == (qwen3.folder / "model.onnx").stat().st_size and figures["external_data"] is False
    assert figures["inputs"][:4] == ["input_ids", "attention_mask", "position_ids", "past_key_values.0.key"]
    assert figures["relative_error"] < 1e-5
    json.dumps(figures)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [20, 23])
def test_the_opset_asked_for_is_the_one_written(pico_base: Path, export: Callable[..., Exported], opset: int) -> None:
    exported = export(pico_base, opset=opset)
    assert [(entry.domain, entry.version) for entry in onnx.load(exported.folder / "model.onnx").opset_import] == [("", opset)]
    assert exported.output.figures["opset"] == opset and exported.output.fallbacks == []
    assert_equal_to_torch(exported, 3, (6, 1, 1), 2)


def test_weights_above_the_limit_of_one_file_lie_in_a_second_one(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_file, "SINGLE_FILE_LIMIT", 100_000)
    context = make_context(tmp_path, "onnx", {"merge": pico_base}, pico_base, strategy="legacy-eager")
    exported = Exported(pico_base, Path(context.staging), stage.run(context, silent()))
    assert exported.output.figures["external_data"] is True
    size = sum((exported.folder / name).stat().st_size for name in ("model.onnx", "model.onnx.data"))
    assert exported.output.figures["graph_bytes"] == size
    assert_equal_to_torch(exported, 3, (6, 1, 1), 2)


@pytest.mark.slow
def test_the_stage_optimizes_its_graphs_when_asked_and_says_what_came_of_each_step(
    trained: Path, export: Callable[..., Exported], qwen3: Exported
) -> None:  # R3.4
    made = export(trained, optimize="basic")
    figures: Any = made.output.figures["optimization"]
    before, after = figures["nodes"]
    assert before == qwen3.output.figures["nodes"] and after == made.output.figures["nodes"] <= before
    assert {step["name"] for step in figures["steps"]} >= {"fold", "slim"}
    assert all(isinstance(step["kept"], bool) and step["reason"] for step in figures["steps"])
    assert_equal_to_torch(made, 3, (6, 1, 1), 2)


# A tracer that meets its sliced buffers does not end. Texts are longer than its windows, so that both kinds of layers are told apart.
@pytest.mark.slow
def test_gpt_neo_with_many_layers_is_exported(tmp_path: Path, export: Callable[..., Exported]) -> None:
    sizes = {name: SMALL[name] for name in ("vocab_size", "hidden_size", "max_position_embeddings", "bos_token_id", "eos_token_id")}
    source = make_model(tmp_path, "GPTNeo", num_layers=8, num_heads=4, attention_types=[[["global", "local"], 4]], window_size=6, **sizes)
    exported = export(source)
    assert exported.output.strategy == "dynamo-eager"
    assert exported.output.figures["relative_error"] < 1e-5
