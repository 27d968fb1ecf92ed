"""What llama.cpp must know of a model and can't see from its weights, and how its weights differ from those of transformers.

A model type of transformers is one architecture of llama.cpp. What llama.cpp computes otherwise, or leaves out beyond the lengths that a
check compares (sliding windows, scaled rotary positions), is refused or bounded here; everything else is left to the check, which runs
the file. Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; names of tensors: the package gguf.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np

from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.models.folder import ModelFolder


@dataclass(frozen=True)
class Part:
    """A tensor of transformers, as a part of one of llama.cpp. `change` takes and gives an fp32 array."""

    source: str
    change: Callable[[np.ndarray], np.ndarray] | None = None
    whole: bool = False
    """Whether `change` needs all of it, and not some rows at a time."""


@dataclass(frozen=True)
class Planned:
    """One tensor of the file: its parts one below the other. `shape` as numpy has it, the reverse of ggml's."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    values: np.ndarray | None = None
    """For a tensor that is computed from the configuration."""


@dataclass(frozen=True)
class Architecture:
    """One architecture of llama.cpp, as a model type of transformers is written in it."""

    kind: gguf.MODEL_ARCH
    permuted: bool = False
    """Its rotary positions turn neighbours, so that rows of queries and keys change places."""
    shift: float = 0.0
    """Added to the weights of norms, which transformers adds when it runs."""
    layer_norm: bool = False
    transposed: tuple[str, ...] = ()
    """Ends of the names of weights that are stored as inputs × outputs."""
    left_out: tuple[str, ...] = ()
    keys: tuple[Callable[[gguf.GGUFWriter, Json], None], ...] = ()
    experts: bool = False
    activations: frozenset[str] = field(default_factory=lambda: frozenset({"silu", "swish"}))


def config_of(model: ModelFolder) -> Json:
    """config.json, with what it says of its language model at the top level."""
    return config_of_text(model.config)


def config_of_text(config: Json) -> Json:
    """The same of a config.json that was read."""
    if "text_config" not in config:
        return config
    nested = config["text_config"]
    return {**config, **DEFAULTS.get(str(nested.get("model_type", config.get("model_type"))), {}), **nested}


def heads(config: Json) -> int:
    """Attention heads."""
    return int(config.get("num_attention_heads") or config["n_head"])


def head_size(config: Json) -> int:
    """Width of a head."""
    return int(config.get("head_dim") or width(config) // heads(config))


def width(config: Json) -> int:
    """Width of the vectors between layers."""
    return int(config.get("hidden_size") or config["n_embd"])


def layers(config: Json) -> int:
    """Number of blocks."""
    return int(config.get("num_hidden_layers") or config["n_layer"])


def positions(config: Json) -> int:
    """Positions that the model knows."""
    return int(config.get("max_position_embeddings") or config.get("n_positions") or config.get("n_ctx") or 2048)


def experts(config: Json) -> int:
    """Experts of a mixture."""
    return int(config.get("num_experts") or config["num_local_experts"])


def rope(config: Json) -> Json:
    """The rotary parameters of layers that see everything."""
    parameters: Json = config.get("rope_parameters") or config.get("rope_scaling") or {}
    parameters = parameters.get("full_attention", parameters)
    return {"rope_theta": config.get("rope_theta", 10000.0), **parameters}


def _experts(writer: gguf.GGUFWriter, config: Json) -> None:
    normed, arch = bool(config.get("norm_topk_prob", False)), config["model_type"]
    if normed != (arch == "qwen3_moe"):
        raise NotPossible(f"llama.cpp {'always' if not normed else 'never'} normalizes the weights of a {arch} model's chosen experts")
    if config.get("mlp_only_layers") or int(config.get("decoder_sparse_step") or 1) != 1:
        raise NotPossible("some of its layers have no experts, and llama.cpp expects them in all layers of such a model")
    writer.add_expert_count(experts(config))
    writer.add_expert_used_count(int(config["num_experts_per_tok"]))
    writer.add_expert_feed_forward_length(int(config["moe_intermediate_size"]))
    if shared := config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(int(shared))


def _gemma2(writer: gguf.GGUFWriter, config: Json) -> None:
    _every(config, 2)
    if config.get("query_pre_attn_scalar") != head_size(config):
        raise NotPossible("its attention is scaled by another number than the width of a head")
    if not config.get("attn_logit_softcapping") or not config.get("final_logit_softcapping"):
        raise NotPossible("its logits are not capped as llama.cpp caps those of Gemma 2")
    writer.add_attn_logit_softcapping(float(config["attn_logit_softcapping"]))
    writer.add_final_logit_softcapping(float(config["final_logit_softcapping"]))
    writer.add_sliding_window(int(config["sliding_window"]))


def _gemma3(writer: gguf.GGUFWriter, config: Json) -> None:
    _every(config, 6)
    if config.get("attn_logit_softcapping"):
        raise NotPossible("its attention is capped, which llama.cpp does not do for Gemma 3")
    if config.get("query_pre_attn_scalar") != head_size(config):
        raise NotPossible("its attention is scaled by another number than the width of a head")
    if capped := config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(float(capped))
    local = (config.get("rope_parameters") or {}).get("sliding_attention", {}).get("rope_theta", config.get("rope_local_base_freq", 1e4))
    if float(local) != 1e4:
        raise NotPossible(f"its local layers have the rotary base {local}, and llama.cpp's 10000")
    writer.add_sliding_window(int(config["sliding_window"]))


def _every(config: Json, period: int) -> None:
    """Refuse a pattern of layers other than all sliding but each last of `period`."""
    wanted = ["full_attention" if number % period == period - 1 else "sliding_attention" for number in range(layers(config))]
    if config.get("layer_types", wanted) != wanted:
        raise NotPossible(f"its layers do not alternate as llama.cpp expects, with one of {period} that sees everything")


def _sections(writer: gguf.GGUFWriter, config: Json) -> None:
    """How many pairs of a head turn by time, height and width."""
    sections = rope(config).get("mrope_section")
    if sections is None:
        raise KeyError("mrope_section")
    writer.add_rope_dimension_sections([*map(int, sections), 0][:4])


def _qwen3_vl(writer: gguf.GGUFWriter, config: Json) -> None:
    """Refuse sections of which llama.cpp would leave out pairs that turn: its third of them goes no further than three times a section
    (ggml-cpu/ops.cpp, `ggml_mrope_cache_init`), where transformers turns the rest by time. In Qwen3-VL these are two of the slowest."""
    _sections(writer, config)
    sections, half = [int(size) for size in rope(config)["mrope_section"]], head_size(config) // 2
    left = [pair for pair in range(half) if pair >= 3 * sections[pair % 3]]
    turned = max((positions(config) * float(rope(config)["rope_theta"]) ** (-pair / half) for pair in left), default=0.0)
    if turned > LEAST_TURN:
        raise NotPossible(f"the sections of its rotary positions are {sections}, and llama.cpp would not turn pair {left[0]} of a head")
    writer.add_num_deepstack_layers(len((config.get("vision_config") or {}).get("deepstack_visual_indexes", ())))


def _partial(writer: gguf.GGUFWriter, config: Json) -> None:
    share = float(rope(config).get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)))
    writer.add_rope_dimension_count(int(share * head_size(config)))


def _phi3(writer: gguf.GGUFWriter, config: Json) -> None:
    _partial(writer, config)
    writer.add_rope_scaling_orig_ctx_len(int(config.get("original_max_position_embeddings") or positions(config)))
    window = config.get("sliding_window")
    writer.add_sliding_window(int(window) if window and int(window) < positions(config) else 0)


def _gpt2(writer: gguf.GGUFWriter, config: Json) -> None:
    if config.get("scale_attn_by_inverse_layer_idx") or config.get("scale_attn_weights") is False:
        raise NotPossible("its attention is scaled in another way than llama.cpp's GPT-2")


def _rotary(writer: gguf.GGUFWriter, config: Json) -> None:
    writer.add_rope_dimension_count(head_size(config))


_DENSE = Architecture(gguf.MODEL_ARCH.LLAMA, permuted=True, keys=(_rotary,))
_QWEN2_VL = Architecture(gguf.MODEL_ARCH.QWEN2VL, keys=(_sections,))
_GELU = frozenset({"gelu_pytorch_tanh", "gelu_new", "gelu_fast"})
ARCHITECTURES: dict[str, Architecture] = {
    "llama": _DENSE,
    "mistral": _DENSE,
    "qwen2": Architecture(gguf.MODEL_ARCH.QWEN2),
    "qwen3": Architecture(gguf.MODEL_ARCH.QWEN3),
    "qwen2_moe": Architecture(gguf.MODEL_ARCH.QWEN2MOE, keys=(_experts,), experts=True),
    "qwen3_moe": Architecture(gguf.MODEL_ARCH.QWEN3MOE, keys=(_experts,), experts=True),
    "gemma": Architecture(gguf.MODEL_ARCH.GEMMA, shift=1.0, left_out=("lm_head.weight",), activations=_GELU),
    "gemma2": Architecture(gguf.MODEL_ARCH.GEMMA2, shift=1.0, left_out=("lm_head.weight",), keys=(_gemma2,), activations=_GELU),
    "gemma3_text": Architecture(gguf.MODEL_ARCH.GEMMA3, shift=1.0, left_out=("lm_head.weight",), keys=(_gemma3,), activations=_GELU),
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": Architecture(gguf.MODEL_ARCH.QWEN3VL, keys=(_qwen3_vl,)),
    "phi": Architecture(gguf.MODEL_ARCH.PHI2, layer_norm=True, keys=(_partial,), activations=_GELU),
    "phi3": Architecture(gguf.MODEL_ARCH.PHI3, keys=(_phi3,)),
    "gpt2": Architecture(
        gguf.MODEL_ARCH.GPT2, layer_norm=True, transposed=(".c_attn.weight", ".c_proj.weight", ".c_fc.weight"),
        left_out=(".attn.bias", ".attn.masked_bias"), keys=(_gpt2,), activations=_GELU,
    ),
}  # fmt: skip
"""Model type of transformers → what it is in llama.cpp."""
_TOWERS = re.compile(r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector)\.")
_TEXT = (
    ("model.language_model.", "model."), ("language_model.model.", "model."), ("model.text_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)  # fmt: skip
"""Beginnings of names in models that read pictures → in their language part alone."""
DEFAULTS: dict[str, Json] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6},
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}  # fmt: skip
"""Model type of a language part → what transformers takes for what a nested configuration leaves out, as hubs' folders do."""
LEAST_TURN = 0.2
"""Radians at the last position within which a pair of a head may stay unturned: those of Qwen3-VL come to 0.11."""
BOUNDED = ("mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""Models whose sliding window llama.cpp does not know: within it both see the same."""


def find(config: Json) -> Architecture:
    """The architecture of a model. Raises NotPossible."""
    kind = str(config.get("model_type"))
    architecture = ARCHITECTURES.get(kind)
    if architecture is None:
        raise NotPossible(f"models of the type {kind} are not written as GGUF; {', '.join(sorted(ARCHITECTURES))} are")
    used = config.get("hidden_activation") or config.get("hidden_act") or config.get("activation_function")
    if used is not None and used not in architecture.activations:
        raise NotPossible(f"its activation is {used}, and llama.cpp's {sorted(architecture.activations)[0]}")
    return architecture


def window(config: Json) -> int | None:
    """The length beyond which llama.cpp, which lacks its sliding window, would compute something else; None where there is none."""
    if config.get("model_type") not in BOUNDED:
        return None
    used = config.get("sliding_window") if config.get("use_sliding_window", config["model_type"] == "mistral") else None
    kinds = config.get("layer_types")
    if used is None or (kinds is not None and "sliding_attention" not in kinds):
        return None
    return int(used) if int(used) < positions(config) else None


def describe(writer: gguf.GGUFWriter, config: Json, architecture: Architecture) -> None:
    """Write the keys of the architecture. Raises NotPossible."""
    writer.add_block_count(layers(config))
    writer.add_context_length(min(positions(config), window(config) or positions(config)))
    writer.add_embedding_length(width(config))
    inner = config.get("intermediate_size") or config.get("n_inner") or 4 * width(config)
    writer.add_feed_forward_length(int(inner))
    writer.add_head_count(heads(config))
    writer.add_vocab_size(int(config["vocab_size"]))
    if architecture.layer_norm:
        writer.add_layer_norm_eps(float(config.get("layer_norm_epsilon") or config.get("layer_norm_eps") or 1e-5))
    else:
        writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    if architecture.kind is not gguf.MODEL_ARCH.GPT2:
        writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads(config)))
        writer.add_key_length(head_size(config))
        writer.add_value_length(head_size(config))
        _positions(writer, rope(config), config)
    for keys in architecture.keys:
        keys(writer, config)


def _positions(writer: gguf.GGUFWriter, wanted: Json, config: Json) -> None:
    writer.add_rope_freq_base(float(wanted["rope_theta"]))
    kind, factor = str(wanted.get("rope_type") or wanted.get("type") or "default"), wanted.get("factor")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(factor or 1.0))
    elif kind == "yarn":
        if {"mscale", "mscale_all_dim"} & wanted.keys() or wanted.get("truncate") is False:
            raise NotPossible("its rotary positions are scaled by a form of YaRN that llama.cpp does not have for it")
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(float(factor or 1.0))
        writer.add_rope_scaling_orig_ctx_len(int(wanted.get("original_max_position_embeddings") or positions(config)))
        if "attention_factor" in wanted and wanted["attention_factor"] is not None:
            writer.add_rope_scaling_yarn_attn_factor(float(wanted["attention_factor"]) / (0.1 * math.log(float(factor or 1.0)) + 1.0))
        for key, add in (("beta_fast", writer.add_rope_scaling_yarn_beta_fast), ("beta_slow", writer.add_rope_scaling_yarn_beta_slow)):
            if wanted.get(key) is not None:
                add(float(wanted[key]))
    elif kind not in ("default", "llama3", "mrope"):
        raise NotPossible(f"its rotary positions are scaled by {kind!r}, which is not written as GGUF")


def frequencies(config: Json) -> np.ndarray | None:
    """Divisors of the rotary frequencies (head size / 2), fp32, for Llama 3's scaling; None without it.

    https://github.com/huggingface/transformers, `_compute_llama3_parameters`: low frequencies are divided by `factor`, high ones are left,
    and between them the divisor is interpolated.
    """
    wanted = rope(config)
    if (wanted.get("rope_type") or wanted.get("type")) != "llama3":
        return None
    size, factor = head_size(config), float(wanted["factor"])
    low, high = float(wanted["low_freq_factor"]), float(wanted["high_freq_factor"])
    length = float(wanted["original_max_position_embeddings"])
    lengths = 2 * np.pi * float(wanted["rope_theta"]) ** (np.arange(0, size, 2, dtype=np.float64) / size)
    smooth = np.clip((length / lengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def plan(config: Json, architecture: Architecture, shapes: dict[str, tuple[int, ...]]) -> Iterator[Planned]:
    """The tensors of the file, in the order of the model's. Raises NotPossible for a weight that llama.cpp does not know."""
    names = gguf.get_tensor_name_map(architecture.kind, layers(config))
    tied = bool(config.get("tie_word_embeddings", architecture.kind is gguf.MODEL_ARCH.GPT2))
    gathered: dict[str, dict[int, str]] = {}
    for stored, shape in shapes.items():
        source = of_text(stored)
        if source is None or source.endswith((*architecture.left_out, "rotary_emb.inv_freq")) or (tied and source == "lm_head.weight"):
            continue
        if architecture.experts and ".experts." in source:
            yield from _of_experts(source, shape, names, gathered, shapes, experts(config))
            continue
        name = _named(names, source)
        transposed = bool(architecture.transposed) and source.endswith(architecture.transposed)
        yield Planned(name, tuple(reversed(shape)) if transposed else shape, (part_of(stored, config, architecture),))
    divisors = frequencies(config)
    if divisors is not None:
        yield Planned("rope_freqs.weight", divisors.shape, (), divisors)


def _named(names: Any, source: str) -> str:
    name: str | None = names.get_name(source, try_suffixes=(".weight", ".bias"))
    if name is None:
        raise NotPossible(f"llama.cpp has no tensor for its weight {source}")
    return name


def of_text(stored: str) -> str | None:
    """What a tensor of a model that reads pictures is called in its language part alone; None for one of a tower."""
    if _TOWERS.match(stored):
        return None
    return next((replacement + stored.removeprefix(prefix) for prefix, replacement in _TEXT if stored.startswith(prefix)), stored)


def part_of(source: str, config: Json, architecture: Architecture) -> Part:
    """A tensor of transformers as llama.cpp stores it."""
    if architecture.transposed and source.endswith(architecture.transposed):
        return Part(source, lambda array: np.ascontiguousarray(array.T), whole=True)
    if architecture.shift and source.endswith("norm.weight"):
        return Part(source, lambda array: array + np.float32(architecture.shift))
    if architecture.permuted and ".self_attn." in source:
        count = {"q_proj": heads(config), "k_proj": int(config.get("num_key_value_heads") or heads(config))}
        if (groups := count.get(source.rsplit(".", 2)[-2])) is not None:
            return Part(source, lambda array: permuted(array, groups), whole=True)
    return Part(source)


def permuted(array: np.ndarray, groups: int) -> np.ndarray:
    """Rows (heads × size) whose halves of a head become neighbours: transformers turns row i with i + size / 2, llama.cpp with i + 1."""
    rows = array.shape[0]
    return np.ascontiguousarray(array.reshape(groups, 2, rows // groups // 2, *array.shape[1:]).swapaxes(1, 2)).reshape(array.shape)


def _of_experts(
    source: str, shape: tuple[int, ...], names: Any, gathered: dict[str, dict[int, str]], shapes: dict[str, tuple[int, ...]], count: int
) -> Iterator[Planned]:  # fmt: skip
    """One tensor of all experts, from one for each or from one that holds all."""
    before, _, rest = source.partition(".experts.")
    if rest in ("gate_up_proj", "down_proj"):  # experts × outputs × inputs
        inner = shape[1] // 2 if rest == "gate_up_proj" else shape[1]
        for place, name in enumerate(("gate_proj", "up_proj") if rest == "gate_up_proj" else ("down_proj",)):
            yield Planned(
                _named(names, f"{before}.experts.{name}.weight"), (shape[0], inner, shape[2]),
                (Part(source, lambda array, at=place * inner: np.ascontiguousarray(array[:, at : at + inner])),),  # type: ignore[misc]
            )  # fmt: skip
        return
    number, _, projection = rest.partition(".")
    known = gathered.setdefault(f"{before}.experts.{projection}", {})
    known[int(number)] = source
    if len(known) == count:
        if {shapes[tensor] for tensor in known.values()} != {shape}:
            raise NotPossible(f"its experts' {projection} differ in shape")
        parts = tuple(Part(known[number]) for number in range(count))
        yield Planned(_named(names, f"{before}.experts.{projection}"), (count, *shape), parts)
