"""How TensorRT-LLM names what transformers names otherwise: the weights and the configuration of the architectures that are known here.

Called by the stage, and by the engine that reads such a checkpoint back. TensorRT-LLM keeps the three projections of attention in one
matrix, one below the other, so that its bytes are theirs in turn: nothing is computed, and it can be taken apart again to the bit.
Names and fields are those of TensorRT-LLM's own converters for Llama and Qwen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from daemon.contract.values import Json

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
_TOP = {"transformer.vocab_embedding": "model.embed_tokens", "transformer.ln_f": "model.norm", "lm_head": "lm_head"}
_LAYER = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "attention.q_layernorm": ("self_attn.q_norm",),
    "attention.k_layernorm": ("self_attn.k_norm",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
    "input_layernorm": ("input_layernorm",),
    "post_layernorm": ("post_attention_layernorm",),
}
"""TensorRT-LLM's names in a layer → transformers' names. The gated product is gate_proj's activation times up_proj: its `fc` and `gate`."""
_ROPES = ("default", "linear", "llama3")
_NAME = re.compile(r"transformer\.layers\.(\d+)\.(.+)\.(weight|bias)")


class Unmapped(Exception):
    """A model that is not known here; the message is a clause."""


def weights(names: Collection[str], layers: int) -> dict[str, tuple[str, ...]]:
    """TensorRT-LLM's name → the tensors that it is made of, one below the other. Raises Unmapped for a tensor that has no place."""
    known, mapped = set(names), dict[str, tuple[str, ...]]()
    for theirs, ours in _TOP.items():
        mapped[f"{theirs}.weight"] = (f"{ours}.weight",)
    if HEAD not in known:
        mapped[HEAD] = (TABLE,)
    for number in range(layers):
        for theirs, parts in _LAYER.items():
            for kind in ("weight", "bias"):
                sources = tuple(f"model.layers.{number}.{part}.{kind}" for part in parts)
                if known.intersection(sources):
                    mapped[f"transformer.layers.{number}.{theirs}.{kind}"] = sources
    used = {tensor for sources in mapped.values() for tensor in sources}
    if left := sorted(known - used):
        raise Unmapped(f"its tensor {left[0]} has no place in TensorRT-LLM's {'layers' if '.layers.' in left[0] else 'model'}")
    if lost := sorted(used - known):
        raise Unmapped(f"its tensor {lost[0]} is missing")
    return mapped


def config(given: Mapping[str, Any], dtype: str, names: Collection[str]) -> Json:
    """TensorRT-LLM's config.json of transformers' configuration. Raises Unmapped for what can't be said there."""
    architecture = (given.get("architectures") or [""])[0]
    if architecture not in ARCHITECTURES:
        raise Unmapped(f"its architecture {architecture or '(none)'} is not mapped; mapped are {', '.join(ARCHITECTURES)}")
    rope = given.get("rope_parameters") or {}
    kind = str(rope.get("rope_type", "default"))
    biases = any(name.endswith("q_proj.bias") for name in names)
    wrong = [
        (kind not in _ROPES, f"its rotary embedding is of the kind {kind}"),
        (bool(given.get("use_sliding_window")) and given.get("sliding_window") is not None, "it attends to a sliding window"),
        (given.get("hidden_act") != "silu", f"its activation is {given.get('hidden_act')}"),
        (architecture == "Qwen3ForCausalLM" and biases, "its attention has biases"),
        (dtype not in ("float32", "float16", "bfloat16"), f"its weights are stored as {dtype}"),
        (rope.get("partial_rotary_factor", 1.0) != 1.0, "its rotary embedding turns a part of each head"),
    ]
    if obstacle := next((cause for is_so, cause in wrong if is_so), None):
        raise Unmapped(f"{obstacle}, which is not mapped")
    heads = int(given["num_attention_heads"])
    scaling = {"type": kind, **{key: value for key, value in rope.items() if key != "rope_theta"}} if kind != "default" else None
    return {
        "architecture": architecture, "dtype": dtype, "logits_dtype": "float32", "vocab_size": given["vocab_size"],
        "hidden_size": given["hidden_size"], "num_hidden_layers": given["num_hidden_layers"], "num_attention_heads": heads,
        "num_key_value_heads": given.get("num_key_value_heads") or heads,
        "head_size": given.get("head_dim") or given["hidden_size"] // heads, "intermediate_size": given["intermediate_size"],
        "hidden_act": "silu", "norm_epsilon": given["rms_norm_eps"], "max_position_embeddings": given["max_position_embeddings"],
        "position_embedding_type": "rope_gpt_neox", "rotary_base": rope.get("rope_theta", 10000.0), "rotary_scaling": scaling,
        "attn_bias": biases, "mlp_bias": any(name.endswith("gate_proj.bias") for name in names),
        "qk_layernorm": any(name.endswith("q_norm.weight") for name in names),
        "tie_word_embeddings": bool(given.get("tie_word_embeddings")),
        **({"qwen_type": architecture.removesuffix("ForCausalLM").lower()} if architecture.startswith("Qwen") else {}),
        "use_parallel_embedding": False, "embedding_sharding_dim": 0, "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }  # fmt: skip


def config_back(given: Mapping[str, Any]) -> Json:
    """transformers' configuration of what TensorRT-LLM's says: what a checkpoint that is read back is loaded with."""
    scaling = given["rotary_scaling"] or {}
    rope = {"rope_type": "default", **{key: value for key, value in scaling.items() if key != "type"}, "rope_theta": given["rotary_base"]}
    architecture = given["architecture"]
    return {
        "model_type": architecture.removesuffix("ForCausalLM").lower(), "architectures": [architecture], "rope_parameters": rope,
        "head_dim": given["head_size"], "rms_norm_eps": given["norm_epsilon"], "attention_bias": given["attn_bias"], "dtype": "float32",
        **{
            key: given[key] for key in (
                "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
                "hidden_act", "max_position_embeddings", "mlp_bias",
            )
        },
        "tie_word_embeddings": False,
    }  # fmt: skip


def apart(name: str, tensor: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors, by transformers' names, of which one of TensorRT-LLM's is made; of anything that can be sliced by rows.

    Raises Unmapped for a name or a size that does not belong there.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        stem = name.removesuffix(".weight")
        if stem not in _TOP or stem == name:
            raise Unmapped(f"{name} is no tensor of such a checkpoint")
        return {f"{_TOP[stem]}.weight": tensor}
    number, theirs, kind = match.groups()
    if theirs not in _LAYER:
        raise Unmapped(f"{name} is no tensor of such a checkpoint")
    query, pair = (int(given[key]) * int(given["head_size"]) for key in ("num_attention_heads", "num_key_value_heads"))
    sizes = (query, pair, pair) if theirs == "attention.qkv" else (len(tensor),)
    if sum(sizes) != len(tensor):
        raise Unmapped(f"{name} has {len(tensor)} rows, where {sum(sizes)} belong")
    parts, start = {}, 0
    for part, size in zip(_LAYER[theirs], sizes, strict=True):
        parts[f"model.layers.{number}.{part}.{kind}"] = tensor[start : start + size]
        start += size
    return parts
