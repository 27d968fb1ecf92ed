"""Tiny models of every task: bases, adapters trained for a moment, real merges, graphs by torch's older exporter, all in seconds."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from handlers.merge.api import merge_adapter
from tests.models import TEXTS

HIDDEN = 48
TEXT_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


Loss = Callable[[Any, Any], Any]
"""(model, batch of the tokenizer) → loss."""


def encoder_tokenizer() -> Any:
    """Byte-level BPE that puts [CLS] and [SEP] around texts, with segments for pairs, and knows [MASK]."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", unk_token="[UNK]"
    )


def _settings(kind: str) -> dict[str, Any]:
    shared = {"vocab_size": 320, "pad_token_id": 0, "num_hidden_layers": 2, "num_attention_heads": 4}
    by_kind: dict[str, dict[str, Any]] = {
        "bert": {"hidden_size": HIDDEN, "intermediate_size": 96, "max_position_embeddings": 128},
        "roberta": {"hidden_size": HIDDEN, "intermediate_size": 96, "max_position_embeddings": 129, "type_vocab_size": 1},
        "distilbert": {"dim": HIDDEN, "hidden_dim": 96, "n_heads": 4, "n_layers": 2, "max_position_embeddings": 128},
        "modernbert": {
            "hidden_size": HIDDEN, "intermediate_size": 96, "max_position_embeddings": 128, "global_attn_every_n_layers": 2,
            "local_attention": 16, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2,
        },
    }  # fmt: skip
    return {**shared, **by_kind[kind], "initializer_range": 0.1}


def make_encoder_base(folder: Path, auto: str, kind: str = "bert", seed: int = 0, **settings: Any) -> Path:
    """A base of wide random weights, saved with its tokenizer as the class that the auto class gives."""
    import torch
    import transformers

    torch.manual_seed(seed)
    options = {**_settings(kind), **settings}
    if kind == "distilbert":
        options = {key: value for key, value in options.items() if key not in ("num_hidden_layers", "num_attention_heads")}
    model = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(kind, **options))
    model.save_pretrained(folder)
    encoder_tokenizer().save_pretrained(folder)
    return folder


def seq2seq_tokenizer() -> Any:
    """Byte-level BPE that ends each text with </s>; 0 is the padding, 1 the end."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<pad>", "</s>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")


def make_seq2seq_base(folder: Path, kind: str = "marian") -> Path:
    """An encoder-decoder of wide random weights; Marian may not say its padding token, BART must begin with one token."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    if kind == "t5":
        sizes: dict[str, Any] = {"d_model": HIDDEN, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4, "tie_word_embeddings": False}
    else:
        sizes = {"d_model": HIDDEN, "max_position_embeddings": 96, "init_std": 0.15}
        for side in ("encoder", "decoder"):
            sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 96}
    tokens: dict[str, Any] = {"vocab_size": 300, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "bos_token_id": None}
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **sizes, **tokens, forced_eos_token_id=None))
    generation = model.generation_config
    generation.decoder_start_token_id, generation.pad_token_id, generation.eos_token_id = 0, 0, 1
    generation.bad_words_ids = [[0]]
    if kind == "bart":
        generation.forced_bos_token_id = 5
    tokenizer = seq2seq_tokenizer()
    _train(model, model.parameters(), tokenizer(TEXTS, return_tensors="pt", padding=True), copying, steps=60, rate=3e-3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def copying(model: Any, batch: Any, shift: int = 0) -> Any:
    """The loss of an encoder-decoder that gives back its source, or the text that comes `shift` places after it."""
    ids, mask = batch["input_ids"], batch["attention_mask"]
    labels = ids.masked_fill(mask == 0, -100).roll(shift, 0)
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def _train(model: Any, parameters: Any, batch: Any, loss: Loss, *, steps: int, rate: float) -> None:
    import torch

    torch.set_num_threads(1)  # on a busy box threads that wait for each other cost minutes
    model.train()
    optimizer = torch.optim.AdamW(parameters, lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    model.eval()


def train_adapter(
    base: Path, folder: Path, auto: str, loss: Loss, *, steps: int = 25, rate: float = 1e-2, seed: int = 1,
    load: dict[str, Any] | None = None, **lora: Any,
) -> Path:  # fmt: skip
    """A LoRA adapter trained for a moment on TEXTS and saved as training leaves it, without a tokenizer."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = getattr(transformers, auto).from_pretrained(base, dtype=torch.float32, **(load or {}))
        model = get_peft_model(plain, LoraConfig(**{"r": 4, "lora_alpha": 8, **lora}))
    trained = [one for one in model.parameters() if one.requires_grad]
    _train(model, trained, tokenizer(TEXTS, return_tensors="pt", padding=True), loss, steps=steps, rate=rate)
    model.save_pretrained(folder)
    return folder


def merge(base: Path, adapter: Path, folder: Path) -> Path:
    """The project's own merge, with the base's tokenizer beside it."""
    folder.mkdir(parents=True)
    merge_adapter(adapter, base, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, folder / name)
    return folder


def _trace(
    module: Any, example: tuple[Any, ...], path: Path, inputs: list[str], outputs: list[str], axes: dict[str, dict[int, str]]
) -> None:
    import torch

    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), example, str(path), dynamo=False, opset_version=17, input_names=inputs, output_names=outputs, dynamic_axes=axes
        )  # fmt: skip


def _loaded(merged: Path, auto: str) -> Any:
    import torch
    import transformers

    return getattr(transformers, auto).from_pretrained(merged, dtype=torch.float32, attn_implementation="eager").eval()


def export_encoder(merged: Path, folder: Path, auto: str, outputs: tuple[str, ...]) -> Path:
    """One graph of an encoder."""
    import torch

    model = _loaded(merged, auto)
    types = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]

    class Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *tensors: Any) -> Any:
            answer = self.model(**dict(zip(names, tensors, strict=True)))
            return tuple(answer[name] for name in outputs)

    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    ids = torch.randint(5, 300, (2, 9)) * mask
    folder.mkdir(parents=True)
    axes = {name: {0: "batch", 1: "sequence"} for name in (*names, *outputs)}
    if auto == "AutoModelForSequenceClassification":
        axes["logits"] = {0: "batch"}
    example = (ids, mask, *((torch.zeros_like(ids),) if types else ()))
    _trace(Named(), example, folder / "model.onnx", names, list(outputs), axes)
    copy_texts(merged, folder)
    return folder


def copy_texts(source: Path, target: Path) -> None:
    """Configuration and tokenizer."""
    for name in TEXT_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


@dataclass(frozen=True)
class Ports:
    """Names of an encoder-decoder's caches."""

    layers: int = 2

    def names(self, prefix: str) -> list[str]:
        """Keys and values of both caches, layer by layer."""
        kinds = [(side, part) for side in ("decoder", "encoder") for part in ("key", "value")]
        return [f"{prefix}.{layer}.{side}.{part}" for layer in range(self.layers) for side, part in kinds]

    def axes(self, prefix: str) -> dict[str, dict[int, str]]:
        """Their dynamic axes."""
        return {name: {0: "batch", 2: "source" if ".encoder." in name else "past"} for name in self.names(prefix)}


def export_seq2seq(merged: Path, folder: Path, *, both: bool = True) -> Path:
    """encoder_model, decoder_model, decoder_with_past_model and, with `both`, a merged decoder of the latter two."""
    import torch
    from transformers import DynamicCache, EncoderDecoderCache
    from transformers.modeling_outputs import BaseModelOutput

    model = _loaded(merged, "AutoModelForSeq2SeqLM")
    ports = Ports()

    def flat(cache: Any) -> list[Any]:
        pairs = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        return [tensor for own, cross in pairs for tensor in (own.keys, own.values, cross.keys, cross.values)]

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = model.get_encoder()

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, mask: Any, ids: Any, states: Any, *past: Any) -> Any:
            own, cross = DynamicCache(), DynamicCache()
            if past:
                own = DynamicCache([(past[4 * i], past[4 * i + 1]) for i in range(ports.layers)])
                cross = DynamicCache([(past[4 * i + 2], past[4 * i + 3]) for i in range(ports.layers)])
            cache = EncoderDecoderCache(own, cross)
            for layer in range(ports.layers if past else 0):
                cache.is_updated[layer] = True
            answer = self.model(
                encoder_outputs=BaseModelOutput(last_hidden_state=states), attention_mask=mask, decoder_input_ids=ids,
                past_key_values=cache, use_cache=True,
            )  # fmt: skip
            return (answer.logits, *flat(answer.past_key_values))

    folder.mkdir(parents=True)
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    ids = torch.randint(2, 300, (2, 7)) * mask
    source, target = {0: "batch", 1: "source"}, {0: "batch", 1: "target"}
    axes = {"input_ids": source, "attention_mask": source, "last_hidden_state": source}
    _trace(Encoder(), (ids, mask), folder / "encoder_model.onnx", ["input_ids", "attention_mask"], ["last_hidden_state"], axes)
    states = model.get_encoder()(ids, attention_mask=mask).last_hidden_state.detach()
    inputs, outputs = ["encoder_attention_mask", "input_ids", "encoder_hidden_states"], ["logits", *ports.names("present")]
    axes = {
        "encoder_attention_mask": source,
        "encoder_hidden_states": source,
        "input_ids": target,
        "logits": target,
        **ports.axes("present"),
    }
    _trace(Decoder(), (mask, torch.tensor([[0, 5], [0, 7]]), states), folder / "decoder_model.onnx", inputs, outputs, axes)
    size = HIDDEN // 4
    past = [torch.randn(2, 4, 3 if ".decoder." in name else 7, size) for name in ports.names("past")]
    names = ports.names("past_key_values")
    later = (mask, torch.tensor([[5], [7]]), states, *past)
    path = folder / "decoder_with_past_model.onnx"
    _trace(Decoder(), later, path, [*inputs, *names], outputs, axes | ports.axes("past_key_values"))
    if both:
        merge_decoders(folder)
    copy_texts(merged, folder)
    return folder


def merge_decoders(folder: Path) -> None:
    """decoder_model_merged.onnx: an If over the two decoders, which `use_cache_branch` chooses from."""
    first, later = (onnx.load(folder / name) for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"))
    inputs = {value.name: value for value in (*first.graph.input, *later.graph.input)}
    outer = list(inputs.values())
    for name in Ports().names("past_key_values"):
        if name not in inputs:
            shape = ["batch", 4, "source" if ".encoder." in name else "past", HIDDEN // 4]
            outer.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    outer.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    branches = {}
    for branch, model in (("else_branch", first), ("then_branch", later)):
        graph = onnx.compose.add_prefix_graph(model.graph, f"{branch}/", rename_inputs=False)
        del graph.input[:]
        branches[branch] = graph
    outputs = [value.name for value in first.graph.output]
    node = helper.make_node("If", ["use_cache_branch"], outputs, **branches)
    graph = helper.make_graph([node], "decoder", outer, list(first.graph.output))
    onnx.save(helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version), folder / "decoder_model_merged.onnx")


def edit_json(path: Path, **values: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
