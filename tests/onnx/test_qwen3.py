"""Qwen2, Qwen3 and Qwen3-MoE: what makes each of them what it is survives the export, and the rest of the folder comes along."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from handlers.families.base import architecture, has_experts
from handlers.families.choice import choose
from handlers.models.tasks import task_of
from handlers.onnx.export import stage
from tests import models
from tests.onnx import qwen
from tests.onnx.conftest import Exported, make_context, silent

KINDS = ("Qwen2", "Qwen3", "Qwen3Moe")
VALUE_DEPENDENT = {"Loop", "If", "Scan", "NonZero", "SequenceAt", "SequenceInsert", "ConcatFromSequence", "SplitToSequence"}
"""Operators by which an export of experts would loop over them, or count their tokens."""
TEMPLATE = """{%- for message in messages %}
    {%- if message.role == 'assistant' and '</think>' in message.content %}
        {{- '<|im_start|>assistant\\n<think>\\n' + message.content.split('</think>')[0].strip('\\n') + '\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}{#- “…” é, a tab:\t, two lines:\r\nand no newline at the end -#}"""
MARKS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"]


def run(source: Path, folder: Path, pin: Path, strategy: str = "default") -> Exported:
    """The onnx stage on a model."""
    context = make_context(folder, "onnx", {"merge": source}, pin, strategy=strategy)
    return Exported(source, Path(context.staging), stage.run(context, silent()))


@pytest.fixture(scope="module")
def variant(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Exported]:
    """Exports a variant by the quickest way, each once."""

    made: dict[str, Exported] = {}

    def make(kind: str = "Qwen3", **options: Any) -> Exported:
        key = json.dumps([kind, options])
        if key not in made:
            folder = tmp_path_factory.mktemp("variant")
            made[key] = run(qwen.make(folder / "model", kind, **options), folder / "out", pico_base, "legacy-eager")
        return made[key]

    return make


def graph(folder: Path) -> onnx.GraphProto:
    """The folder's only graph."""
    return onnx.load(folder / "model.onnx").graph


# R3.1
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told_from_its_configuration(kind: str, tied: bool, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**qwen.PICO, tie_word_embeddings=tied, **(qwen.EXPERTS if kind == "Qwen3Moe" else {}))
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    task = task_of(tmp_path)
    assert task is not None and (task.name, choose(tmp_path).name) == ("text-generation", "causal")
    assert architecture(tmp_path) == f"{kind}ForCausalLM" and has_experts(tmp_path) == (kind == "Qwen3Moe")


# R3.1, R3.2
@pytest.mark.parametrize(("kind", "tied"), [pytest.param("Qwen3", True, marks=pytest.mark.slow), ("Qwen2", False)])
def test_dense_models_say_what_torch_says_whether_or_not_the_head_is_tied(kind: str, tied: bool, variant: Callable[..., Exported]) -> None:
    exported = variant(kind, tie_word_embeddings=tied)
    qwen.assert_equal_to_torch(exported.source, exported.folder)
    vocabulary = [sorted(tensor.dims) for tensor in graph(exported.folder).initializer if 320 in tensor.dims]
    assert vocabulary == [[64, 320]] * (1 if tied else 2)


@pytest.mark.slow
def test_queries_and_keys_are_normed_with_weights_of_their_own(variant: Callable[..., Exported]) -> None:
    normed, plain = variant("Qwen3", tie_word_embeddings=True), variant("Qwen2", tie_word_embeddings=False)

    def head_norms(exported: Exported) -> int:
        vectors = [onnx.numpy_helper.to_array(tensor) for tensor in graph(exported.folder).initializer if tensor.dims == [16]]
        return sum(vector.dtype == np.float32 for vector in vectors)

    from safetensors.numpy import load_file

    weights = load_file(normed.source / "model.safetensors")
    found = {onnx.numpy_helper.to_array(tensor).tobytes() for tensor in graph(normed.folder).initializer}
    for name in ("q_norm", "k_norm"):
        assert weights[f"model.layers.0.self_attn.{name}.weight"].tobytes() in found
    assert (head_norms(normed), head_norms(plain)) == (4, 0)


def test_heads_may_be_wider_than_the_model_divided_among_them(variant: Callable[..., Exported]) -> None:
    exported = variant("Qwen3", head_dim=24, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=1)
    shapes = {
        value.name: [dimension.dim_param or dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        for value in graph(exported.folder).input
    }
    assert shapes["past_key_values.0.key"] == shapes["past_key_values.0.value"] == ["batch", 2, "past", 24]
    qwen.assert_equal_to_torch(exported.source, exported.folder)


# R3.2
@pytest.mark.parametrize(
    "rope",
    [
        pytest.param({"rope_type": "default", "rope_theta": 1e6}, marks=pytest.mark.slow),
        pytest.param({"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0}, marks=pytest.mark.slow),
        {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32},
        pytest.param(
            {
                "rope_type": "llama3", "rope_theta": 1e6, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda rope: str(rope["rope_type"]),
)  # fmt: skip
def test_positions_turn_by_the_models_own_theta_and_scaling(rope: dict[str, Any], variant: Callable[..., Exported]) -> None:
    exported = variant("Qwen3", rope_parameters=rope)
    qwen.assert_equal_to_torch(exported.source, exported.folder)
    long = qwen.BATCHES[5]
    for other in ({"rope_type": "default", "rope_theta": 1e4}, {"rope_type": "default", "rope_theta": 5e5}):
        assert (
            qwen.apart(exported.source, exported.folder, long, rope_parameters=other) > 0.02
        )  # the comparison would have seen another theta


# R3.2
@pytest.mark.slow
def test_a_scaling_that_grows_with_the_prompt_is_followed_past_the_length_where_it_sets_in(pico_base: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e6, "factor": 4.0}
    source = qwen.make(tmp_path / "model", rope_parameters=rope, max_position_embeddings=16)
    exported = run(source, tmp_path / "out", pico_base)
    qwen.assert_equal_to_torch(source, exported.folder)
    long = qwen.BATCHES[5]
    assert qwen.apart(source, exported.folder, long, rope_parameters=qwen.ROPE) > 0.02


# R3.2
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "windowed"),
    [
        ("Qwen3", True),
        pytest.param("Qwen2", False, marks=pytest.mark.slow),
        pytest.param("Qwen3", False, marks=pytest.mark.slow),
        pytest.param("Qwen2", True, marks=pytest.mark.slow),
    ],
)
def test_windows_slide_in_the_layers_that_have_them_and_only_if_they_are_used(
    kind: str, windowed: bool, variant: Callable[..., Exported]
) -> None:
    exported = variant(kind, num_hidden_layers=3, use_sliding_window=windowed, sliding_window=6, max_window_layers=1)
    kinds = json.loads((exported.folder / "config.json").read_text())["layer_types"]
    assert kinds == ["full_attention", *(["sliding_attention"] * 2 if windowed else ["full_attention"] * 2)]
    qwen.assert_equal_to_torch(exported.source, exported.folder)
    long = qwen.BATCHES[5]
    others = [["full_attention"] * 3 if windowed else ["sliding_attention"] * 3]
    others += [["sliding_attention"] * 3] if windowed else []
    for other in others:
        changed = {"layer_types": other, "use_sliding_window": True, "sliding_window": 6}
        assert qwen.apart(exported.source, exported.folder, long, **changed) > 0.02, other


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A model with the marks, the chat template and the sampling rules of one that thinks."""
    folder = tmp_path_factory.mktemp("thinker")
    source = qwen.make(folder / "model", vocab_size=330, num_hidden_layers=1)
    tokenizer = models.make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS[:2]})
    tokenizer.add_tokens(MARKS[2:])
    tokenizer.eos_token = "<|im_end|>"
    pin = folder / "pin"
    tokenizer.save_pretrained(pin)
    (pin / "chat_template.jinja").write_bytes(TEMPLATE.encode())
    rules = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [321, 1], "pad_token_id": 0}
    (source / "generation_config.json").write_text(json.dumps(rules, indent=2))
    return run(source, folder / "out", pin, "legacy-eager")


# R3.3
def test_a_thinking_models_template_stays_as_it_was_byte_by_byte(thinker: Exported) -> None:
    assert (thinker.folder / "chat_template.jinja").read_bytes() == TEMPLATE.encode()


def test_a_thinking_models_marks_stay_single_tokens(thinker: Exported) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    alone = Tokenizer.from_file(str(thinker.folder / "tokenizer.json"))
    assert [alone.encode(mark).ids for mark in MARKS] == [[320 + place] for place in range(len(MARKS))]
    assert alone.decode([322, 72, 323], skip_special_tokens=True).startswith("<think>")  # thinking is shown, unlike the turn's marks
    whole = AutoTokenizer.from_pretrained(thinker.folder)
    assert (whole.eos_token, whole.pad_token) == ("<|im_end|>", "<|pad|>")
    asked = [{"role": "user", "content": "add"}]
    quiet = whole.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert quiet == "<|im_start|>user\nadd<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert quiet.startswith(whole.apply_chat_template(asked, tokenize=False, add_generation_prompt=True))


def test_generation_rules_and_configuration_come_along_unchanged(thinker: Exported) -> None:
    assert (thinker.folder / "generation_config.json").read_bytes() == (thinker.source / "generation_config.json").read_bytes()
    written, source = (models.read_json(folder / "config.json") for folder in (thinker.folder, thinker.source))
    assert written == {**source, "rope_theta": source["rope_parameters"]["rope_theta"], "torch_dtype": source["dtype"]}


@pytest.fixture(scope="module")
def mixture(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A mixture of eight experts in one layer, exported by the way that the stage chooses itself."""
    folder = tmp_path_factory.mktemp("mixture")
    source = qwen.make(folder / "model", "Qwen3Moe", num_hidden_layers=1, tie_word_embeddings=False)
    return run(source, folder / "out", pico_base)


def operators(nodes: Any) -> Iterator[str]:
    """Types of all operators, of inner graphs and functions too."""
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            yield from operators(attribute.g.node)


def routes(source: Path, batch: qwen.Batch) -> set[tuple[int, ...]]:
    """The pairs of experts that a batch's tokens are sent to in the first layer."""
    import torch

    model = qwen.torch_model(source)
    ids, mask, positions = (torch.from_numpy(array) for array in batch.arrays())
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, output_router_logits=True).router_logits[0]
    return {tuple(sorted(row)) for row in logits.topk(2).indices.tolist()}


@pytest.mark.slow
# R3.1
def test_experts_are_chosen_without_control_flow(mixture: Exported) -> None:
    model = onnx.load(mixture.folder / "model.onnx")
    found = {*operators(model.graph.node), *(kind for function in model.functions for kind in operators(function.node))}
    assert "TopK" in found and not found & VALUE_DEPENDENT
    assert (mixture.output.strategy, mixture.output.fallbacks) == ("dynamo-experts", [])


@pytest.mark.slow
# R3.2
def test_a_mixture_says_what_torch_says_however_its_tokens_are_routed(mixture: Exported) -> None:
    taken = {batch: routes(mixture.source, batch) for batch in qwen.BATCHES}
    assert len(taken[qwen.BATCHES[0]] - taken[qwen.BATCHES[1]]) + len(taken[qwen.BATCHES[1]] - taken[qwen.BATCHES[0]]) > 1
    assert len(set.union(*taken.values())) > 15  # of 28 pairs; a graph that baked in one batch's choice would fail on another
    qwen.assert_equal_to_torch(mixture.source, mixture.folder)


# R3.1, R3.2
@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_by_the_way_that_the_stage_chooses_itself(kind: str, tied: bool, pico_base: Path, tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32}
    options = {"rope_parameters": rope, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
    source = qwen.make(tmp_path / "model", kind, tie_word_embeddings=tied, **options)
    exported = run(source, tmp_path / "out", pico_base)
    assert exported.output.fallbacks == [] and exported.output.strategy == ("dynamo-experts" if kind == "Qwen3Moe" else "dynamo-eager")
    qwen.assert_equal_to_torch(source, exported.folder)


def test_the_folder_needs_nothing_but_itself(thinker: Exported, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(thinker.folder, copy)
    assert np.isfinite(qwen.onnx_logits(qwen.onnx_engine(copy), qwen.BATCHES[2])).all()
