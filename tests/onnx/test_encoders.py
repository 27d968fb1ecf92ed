"""Encoders with every head become one graph that says what torch says, for any batch, length and padding."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.families.encoder import Encoder, EncoderReference, OnePass, refer
from handlers.graphs import graphset
from handlers.graphs.comparison import GraphMismatchError
from handlers.models.tasks import BY_NAME
from tests.onnx.conftest import SMALL, Exported

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.15,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "Bert": {**SIZES, "type_vocab_size": 2},
    "Roberta": {**SIZES, "pad_token_id": 1, "type_vocab_size": 1},
    "DistilBert": {"vocab_size": 320, "dim": 48, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 64,
                   "pad_token_id": 0, "initializer_range": 0.15},
    "ModernBert": {**SIZES, "num_hidden_layers": 4, "local_attention": 16, "global_attn_every_n_layers": 3, "cls_token_id": 2,
                   "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "Electra": {**SIZES, "embedding_size": 32},
    "Albert": {**SIZES, "embedding_size": 32},
    "DebertaV2": {**SIZES, "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
                  "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "type_vocab_size": 0, "conv_kernel_size": 3,
                  "conv_act": "gelu"},
    "Llama": SMALL,
    "GPT2": {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "pad_token_id": 0},
}  # fmt: skip
"""transformers' families, small; DeBERTa with every part that makes its attention special, ModernBERT with a window of 16."""
HEADS = {
    "feature-extraction": "Model", "text-classification": "ForSequenceClassification", "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering", "fill-mask": "ForMaskedLM",
}  # fmt: skip
SHAPES = [(1, 1), (1, 7), (3, 7), (1, 40), (3, 30)]
FEATURES = [("Bert", "feature-extraction")]
OTHERS = [
    ("DistilBert", "question-answering"),
    ("Roberta", "text-classification"), ("ModernBert", "fill-mask"), ("ModernBert", "text-classification"),
    ("Electra", "token-classification"), ("Albert", "text-classification"), ("DebertaV2", "token-classification"),
    ("Bert", "fill-mask"), ("Bert", "question-answering"), ("Roberta", "feature-extraction"), ("Llama", "text-classification"),
    ("GPT2", "feature-extraction"),
]  # fmt: skip


def make(folder: Path, kind: str, task: str, **options: Any) -> Path:
    """A small model of a family with the head of a task; its norms and biases are not the trivial ones."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**{**KINDS[kind], **options})
    model = getattr(transformers, f"{kind}{HEADS[task]}")(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "weight" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    return folder


def batch(rows: int, tokens: int, *, pad: int, types: bool) -> dict[str, np.ndarray]:
    """Token ids; of three rows the first is padded on the left, the last on the right."""
    ids = np.random.default_rng(rows * 100 + tokens).integers(4, 320, (rows, tokens))
    mask = np.ones_like(ids)
    if rows > 1:
        mask[0, : tokens // 3] = 0
        mask[-1, tokens - tokens // 3 :] = 0
    feeds = {"input_ids": np.where(mask, ids, pad), "attention_mask": mask}
    return feeds | ({"token_type_ids": (np.arange(tokens) > tokens // 2)[None].repeat(rows, 0).astype(np.int64)} if types else {})


def assert_says_what_torch_says(folder: Path, model: Any, shapes: list[tuple[int, int]] | None = None) -> None:
    import torch

    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    types = "token_type_ids" in {value.name for value in session.get_inputs()}
    for rows, tokens in shapes or SHAPES:
        feeds = batch(rows, tokens, pad=model.config.pad_token_id, types=types)
        with torch.inference_mode():
            wanted = model(**{name: torch.from_numpy(feed) for name, feed in feeds.items()})
        for name, found in zip(names, session.run(names, feeds), strict=True):
            expected = wanted[name].numpy()
            assert found.shape == expected.shape
            real = feeds["attention_mask"].astype(bool) if found.shape[:2] == (rows, tokens) else np.ones(rows, bool)
            assert np.abs(found - expected)[real].max() <= 1e-4 * max(1.0, np.abs(expected).max()), (name, rows, tokens)


def loaded(source: Path, task: str) -> Any:
    import transformers

    return getattr(transformers, BY_NAME[task].auto).from_pretrained(source, attn_implementation="eager").eval()


@pytest.fixture(scope="session")
def encoders(export: Callable[..., Exported], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Exported]:
    """Exports a family with a head once."""
    made: dict[tuple[str, str], Exported] = {}

    def get(kind: str, task: str) -> Exported:
        if (kind, task) not in made:
            made[kind, task] = export(make(tmp_path_factory.mktemp("encoder"), kind, task))
        return made[kind, task]

    return get


# R3.1, R3.2
@pytest.mark.parametrize(("kind", "task"), [*FEATURES, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS)])
def test_an_encoder_says_what_torch_says_at_any_batch_length_and_padding(
    encoders: Callable[[str, str], Exported], kind: str, task: str
) -> None:
    exported = encoders(kind, task)
    assert (exported.output.strategy, exported.output.fallbacks) == ("dynamo-eager", [])
    assert_says_what_torch_says(exported.folder, loaded(exported.source, task))


def test_inputs_outputs_and_axes_carry_the_names_that_the_ecosystem_uses(encoders: Callable[[str, str], Exported]) -> None:
    graphs = graphset.read(encoders("Bert", "feature-extraction").folder)
    assert (graphs.task, graphs.family) == ("feature-extraction", "encoder")
    (graph,) = graphs.graphs
    both = ("batch", "sequence")
    assert {port.name: (port.dtype, port.shape) for port in graph.inputs} == {
        "input_ids": ("int64", both), "attention_mask": ("int64", both), "token_type_ids": ("int64", both),
    }  # fmt: skip
    assert {port.name: port.shape for port in graph.outputs} == {"last_hidden_state": (*both, 48), "pooler_output": ("batch", 48)}


@pytest.mark.parametrize(
    ("kind", "task", "outputs"),
    [("DistilBert", "question-answering", ("start_logits", "end_logits")), ("Roberta", "text-classification", ("logits",))],
)
def test_token_types_are_an_input_only_where_the_model_tells_them_apart(
    tmp_path: Path, kind: str, task: str, outputs: tuple[str, ...]
) -> None:
    source = make(tmp_path, kind, task)
    signature = refer(loaded(source, task), source, BY_NAME[task]).signature
    assert (signature.inputs, signature.outputs) == (("input_ids", "attention_mask"), outputs)


def test_a_model_with_a_window_is_checked_beyond_it(tmp_path: Path) -> None:
    source = make(tmp_path, "ModernBert", "fill-mask")
    reference = refer(loaded(source, "fill-mask"), source, BY_NAME["fill-mask"])
    assert max(case.feeds["input_ids"].shape[1] for case in reference.cases) > 16


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Any, EncoderReference]:
    """A question answering model with its reference, to hand over graphs that are wrong."""
    source = make(tmp_path_factory.mktemp("answers"), "Bert", "question-answering")
    family = Encoder(BY_NAME["question-answering"])
    model = loaded(source, "question-answering")
    return family, model, family.refer(model, source)


def traced(answers: tuple[Encoder, Any, EncoderReference], folder: Path, change: Callable[[Any], None]) -> None:
    """Write the graph of the part's module after `change` was done to the module."""
    import torch

    family, model, reference = answers
    (part,) = family.parts(model, reference)
    change(part.module)
    signature = reference.signature
    names = {name: dict(axes) for name, axes in signature.axes.items()}
    torch.onnx.export(
        part.module, part.example, str(folder / "model.onnx"), dynamo=False, input_names=list(signature.inputs),
        output_names=list(signature.outputs), dynamic_axes=names, opset_version=18,
    )  # fmt: skip


def unmasked(module: Any) -> None:
    class WithoutMask(OnePass):
        def forward(self, *tensors: Any) -> Any:
            return super().forward(tensors[0], tensors[1] * 0 + 1, tensors[2])

    module.__class__ = WithoutMask


def swapped(module: Any) -> None:
    class Swapped(OnePass):
        def forward(self, *tensors: Any) -> Any:
            return super().forward(*tensors)[::-1]

    module.__class__ = Swapped


def same(module: Any) -> None:
    """Leave the module as it is."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "refused"), [(same, None), (unmasked, "differ from torch's"), (swapped, "start_logits differ from torch's")]
)
def test_a_graph_that_is_wrong_is_refused(
    answers: tuple[Encoder, Any, EncoderReference], tmp_path: Path, change: Callable[[Any], None], refused: str | None
) -> None:
    traced(answers, tmp_path, change)
    family, _, reference = answers
    if refused is None:
        assert family.verify(tmp_path, reference) < 1e-5
        return
    with pytest.raises(GraphMismatchError, match=refused):
        family.verify(tmp_path, reference)


def test_a_model_that_writes_about_images_is_refused_with_the_reason(tmp_path: Path, export: Callable[..., Exported]) -> None:
    config = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "vision_config": {}, "text_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Permanent, match="LlavaForConditionalGeneration writes text about pictures, and no graphs are made of such models"):
        export(tmp_path)


def test_a_classifier_that_looks_for_padding_it_does_not_know_is_refused(tmp_path: Path, export: Callable[..., Exported]) -> None:
    source = make(tmp_path, "Llama", "text-classification", pad_token_id=None)
    with pytest.raises(Permanent, match="names no pad_token_id") as refusal:
        export(source)
    assert refusal.value.fault.remedy == "set pad_token_id in the base's config.json"


ADAPTED = [
    ("Roberta", "text-classification", "SEQ_CLS", ["query", "value"], "fill-mask"),
    pytest.param("Bert", "token-classification", "TOKEN_CLS", ["query", "value"], "fill-mask", marks=pytest.mark.slow),
    pytest.param("DistilBert", "question-answering", "QUESTION_ANS", ["q_lin", "v_lin"], "fill-mask", marks=pytest.mark.slow),
    pytest.param("ModernBert", "fill-mask", None, ["Wqkv", "Wo"], "fill-mask", marks=pytest.mark.slow),
    pytest.param("Bert", "feature-extraction", "FEATURE_EXTRACTION", ["query", "dense"], "feature-extraction", marks=pytest.mark.slow),
]


def trained_adapter(source: Path, folder: Path, task: str, peft_task: str | None, targets: list[str]) -> Any:
    """The live model of a LoRA adapter trained for a few steps, the adapter being saved in `folder`."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(5)
    options = {"num_labels": 3} if task in ("text-classification", "token-classification") else {}
    base = getattr(transformers, BY_NAME[task].auto).from_pretrained(source, **options)
    model: Any = get_peft_model(base, LoraConfig(task_type=peft_task, r=4, lora_alpha=16, target_modules=targets))
    types = getattr(base.config, "type_vocab_size", 0) == 2
    feeds = {name: torch.from_numpy(feed) for name, feed in batch(6, 12, pad=base.config.pad_token_id, types=types).items()}
    optimizer = torch.optim.AdamW((parameter for parameter in model.parameters() if parameter.requires_grad), lr=2e-2)
    for _ in range(12):
        output = model(**feeds)
        # Any loss that moves every output teaches the adapter something.
        sum(output[name].square().mean() + output[name].mean() for name in output if name != "hidden_states").backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return model.eval()


# R1.2, R3.2
@pytest.mark.parametrize(("kind", "task", "peft_task", "targets", "stored"), ADAPTED)
def test_the_graph_of_a_merged_adapter_says_what_base_and_adapter_say(
    tmp_path: Path, export: Callable[..., Exported], kind: str, task: str, peft_task: str | None, targets: list[str], stored: str
) -> None:
    from handlers.merge.api import merge_adapter

    base, adapter, merged = tmp_path / "base", tmp_path / "adapter", tmp_path / "merged"
    make(base, kind, stored)
    live = trained_adapter(base, adapter, task, peft_task, targets)
    merged.mkdir()
    merge_adapter(adapter, base, merged)
    exported = export(merged, strategy="legacy-eager")
    assert exported.output.figures["task"] == task
    assert_says_what_torch_says(exported.folder, live)
    with live.disable_adapter(), pytest.raises(AssertionError):
        assert_says_what_torch_says(exported.folder, live)


def test_the_file_says_which_task_it_is_for(encoders: Callable[[str, str], Exported]) -> None:
    model = onnx.load(encoders("Bert", "feature-extraction").folder / "model.onnx")
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert (facts["ckptd.task"], facts["ckptd.model_type"]) == ("feature-extraction", "bert")
