"""Tiny models of every family that the matrix of exports has, with random weights, and the names that adapters need of them.

Used by `design` (names alone) and by `stock`, whose process has nothing of ckptd: nothing of it is imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VOCABULARY, WIDTH, INNER = 320, 64, 128
"""The vocabulary is that of the tests' tokenizer; on a CPU bitsandbytes computes with rows of whole blocks alone, which are 64 values."""


@dataclass(frozen=True)
class Family:
    """How to make a model (given whether embedding and head are tied), and the names of its modules."""

    make: Callable[[bool], Any]
    auto: str
    """The auto class that loads it."""
    linear: tuple[str, ...]
    norms: tuple[str, ...]
    embedding: str
    head: str = "lm_head"
    inner: tuple[str, ...] = ()
    """Those of `linear` whose inputs are a feed-forward layer's inner values."""
    inputs: str = "ids"
    task: str | None = "CAUSAL_LM"
    ties: tuple[bool, ...] = (True, False)
    """Whether embedding and head can be tied, and can be apart."""
    experts: tuple[str, ...] = ()
    """Parameters of stacked experts."""
    verdict: str = "passed"
    """Of a sound export: ckptd has no check for models that read no text."""


def _model(config: str, model: str, tied: bool | None, **options: Any) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0,
        "eos_token_id": 1, "bos_token_id": 1,
    }  # fmt: skip
    if config == "FalconConfig":  # a property there
        del common["head_dim"]
    if tied is not None:
        common["tie_word_embeddings"] = tied
    return getattr(transformers, model)(getattr(transformers, config)(**{**common, **options}))


def _decoder(name: str, **options: Any) -> Callable[[bool], Any]:
    return functools.partial(_tied_last, f"{name}Config", f"{name}ForCausalLM", options)


def _tied_last(config: str, model: str, options: dict[str, Any], tied: bool) -> Any:
    return _model(config, model, tied, **options)


def _pair(name: str, model: str, **options: Any) -> Callable[[bool], Any]:
    """An encoder and a decoder."""
    own = {
        "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER, "init_std": 0.2, "decoder_start_token_id": 0, "forced_eos_token_id": None,
        "forced_bos_token_id": None, "d_kv": 16, "d_ff": INNER, "num_layers": 2, "num_heads": 4, "initializer_factor": 0.5,
    }  # fmt: skip
    return functools.partial(_tied_last, f"{name}Config", model, {**own, **options})


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_GATED = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")
_PAIR: dict[str, Any] = {"auto": "AutoModelForSeq2SeqLM", "embedding": "embed_tokens", "inputs": "pair", "task": "SEQ_2_SEQ_LM"}


def _gated(name: str, /, norms: tuple[str, ...] = ("input_layernorm", "norm"), **options: Any) -> Family:
    return Family(_decoder(name, **options), "AutoModelForCausalLM", _GATED, norms, "embed_tokens", inner=("down_proj",))


def _moe(name: str, /, experts: str = "mlp.experts", count: str = "num_experts", **options: Any) -> Family:
    sizes = {count: 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "intermediate_size": 24}
    return Family(
        _decoder(name, **sizes, **options), "AutoModelForCausalLM", _ATTENTION, ("input_layernorm", "norm"), "embed_tokens",
        inner=("o_proj",), ties=(False,), experts=(f"{experts}.gate_up_proj", f"{experts}.down_proj"),
    )  # fmt: skip


def _encoder(name: str, kind: str, linear: tuple[str, ...], norms: tuple[str, ...], inner: str, **more: Any) -> Family:
    options = {"dim": WIDTH, "hidden_dim": INNER, "n_layers": 2, "n_heads": 4, "is_decoder": False, **more.pop("options", {})}
    return Family(
        functools.partial(_tied_last, f"{name}Config", f"{name}For{kind}", options), f"AutoModelFor{kind}", linear, norms,
        "word_embeddings", inner=(inner,), **{"task": None, **more},
    )  # fmt: skip


def _vit(tied: bool) -> Any:
    return _model("ViTConfig", "ViTForImageClassification", None, image_size=32, patch_size=8, num_labels=5)


FAMILIES: dict[str, Family] = {
    "llama": _gated("Llama"),
    "mistral": _gated("Mistral"),
    "qwen2": _gated("Qwen2"),
    "qwen3": _gated("Qwen3", ("q_norm", "norm")),
    "gemma": _gated("Gemma"),
    "gemma2": _gated("Gemma2", query_pre_attn_scalar=16),
    "gemma3": Family(
        functools.partial(_tied_last, "Gemma3TextConfig", "Gemma3ForCausalLM", {"query_pre_attn_scalar": 16}), "AutoModelForCausalLM",
        _GATED, ("input_layernorm", "norm"), "embed_tokens", inner=("down_proj",),
    ),
    "phi": Family(
        _decoder("Phi", num_key_value_heads=4), "AutoModelForCausalLM", ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
        ("input_layernorm", "final_layernorm"), "embed_tokens", inner=("fc2",),
    ),
    "phi3": Family(
        _decoder("Phi3"), "AutoModelForCausalLM", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"), ("input_layernorm", "norm"),
        "embed_tokens", inner=("down_proj",),
    ),
    "gpt2": Family(
        functools.partial(_tied_last, "GPT2Config", "GPT2LMHeadModel", {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 256}),
        "AutoModelForCausalLM", ("c_attn", "c_proj", "c_fc"), ("ln_1", "ln_f"), "wte", inner=("mlp.c_proj",),
    ),
    "gpt-neox": Family(
        _decoder("GPTNeoX"), "AutoModelForCausalLM", ("query_key_value", "attention.dense", "dense_h_to_4h", "dense_4h_to_h"),
        ("input_layernorm", "final_layer_norm"), "embed_in",
        inner=("dense_4h_to_h",),
    ),
    "opt": Family(
        _decoder("OPT", ffn_dim=INNER, word_embed_proj_dim=WIDTH, init_std=0.2), "AutoModelForCausalLM",
        ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), ("self_attn_layer_norm", "final_layer_norm"), "embed_tokens",
        inner=("fc2",),
    ),
    "bloom": Family(
        _decoder("Bloom", n_layer=2, n_head=4), "AutoModelForCausalLM",
        ("query_key_value", "self_attention.dense", "dense_h_to_4h", "dense_4h_to_h"), ("input_layernorm", "ln_f"), "word_embeddings",
        inner=("dense_4h_to_h",),
    ),
    "falcon": Family(
        _decoder("Falcon", new_decoder_architecture=False, alibi=False), "AutoModelForCausalLM",
        ("query_key_value", "self_attention.dense", "dense_h_to_4h", "dense_4h_to_h"), ("input_layernorm", "ln_f"), "word_embeddings",
        inner=("dense_4h_to_h",),
    ),
    "qwen3-moe": _moe("Qwen3Moe"),
    "mixtral": _moe("Mixtral", count="num_local_experts"),
    "olmoe": _moe("Olmoe"),
    "gpt-oss": _moe("GptOss", count="num_local_experts"),
    "t5": Family(
        _pair("T5", "T5ForConditionalGeneration"), linear=("q", "k", "v", "o", "wi", "wo"),
        norms=("layer_norm", "final_layer_norm"), inner=("wo",), **_PAIR,
    ),
    "mt5": Family(
        _pair("MT5", "MT5ForConditionalGeneration", feed_forward_proj="gated-gelu"), linear=("q", "k", "v", "o", "wi_0", "wi_1", "wo"),
        norms=("layer_norm", "final_layer_norm"), inner=("wo",), **_PAIR,
    ),
    "bart": Family(
        _pair("Bart", "BartForConditionalGeneration"), linear=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm"), inner=("fc2",), **_PAIR, ties=(True,),
    ),
    "marian": Family(
        _pair("Marian", "MarianMTModel"), linear=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm"), inner=("fc2",), **_PAIR, ties=(True,),
    ),
    "bert": _encoder("Bert", "MaskedLM", ("query", "key", "value", "dense"), ("LayerNorm",), "output.dense", head="decoder"),
    "bert-classes": _encoder(
        "Bert", "SequenceClassification", ("query", "key", "value", "dense"), ("LayerNorm",), "output.dense", head="classifier",
        task="SEQ_CLS", ties=(False,), options={"num_labels": 3},
    ),
    "roberta": _encoder(
        "Roberta", "MaskedLM", ("query", "key", "value", "dense"), ("LayerNorm",), "output.dense", head="decoder",
        options={"max_position_embeddings": 258},
    ),
    "distilbert": _encoder(
        "DistilBert", "MaskedLM", ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"), ("sa_layer_norm", "output_layer_norm"), "lin2",
        head="vocab_projector", options={"tie_weights_": True},
    ),
    "vit": Family(
        _vit, "AutoModelForImageClassification", ("q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"), ("layernorm_before",), "",
        "classifier", ("fc2",), "pixels", None, (False,), verdict="unverified",
    ),
}  # fmt: skip


def example(family: Family) -> dict[str, Any]:
    """Inputs of one pass."""
    import torch

    if family.inputs == "pixels":
        return {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)}
    ids = torch.arange(3, 19)[None]
    return {"input_ids": ids, "decoder_input_ids": ids[:, :7]} if family.inputs == "pair" else {"input_ids": ids}
