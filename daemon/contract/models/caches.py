"""What a language model keeps of the tokens that it has read, by config.json alone: keys and values of each, or something else.

Read when a job begins, to refuse what is made with a cache of keys and values before anything is loaded. The names of kinds of layers are
those of transformers 5 (`layer_types`, from which `DynamicCache` makes its layers) and of older configurations of hybrids. Configurations
are written without what is the default of their class, so that a family whose default has such layers is known by its `model_type`; a test
holds both against every decoder of the installed transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

from daemon.contract.values import Json

STATES = "its layers keep a running state (a state-space model, linear attention, a convolution), not keys and values of each token alone"
SHARED = "some of its layers keep no keys and values of their own but use another layer's"
INDEXED = "its layers keep an index of the tokens or compressed tokens beside keys and values"

_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("conv", "linear_attention", "hybrid", "hybrid_sliding", "mamba", "mamba2", "recurrent"), STATES),
    **dict.fromkeys(("indexed_attention", "heavily_compressed_attention", "compressed_sparse_attention"), INDEXED),
}
"""Kind of layer → what it keeps, of those that keep more than keys and values."""
_LISTS = ("layer_types", "layers_block_type", "block_types")
"""Keys that name the kind of each layer."""
_FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bailing_hybrid", "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "inkling2_text", "inkling_text", "jamba",
            "kimi_linear", "lfm3", "mamba", "mamba2", "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5", "qwen3_5_moe",
            "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "recurrent_gemma", "rwkv", "xlstm", "zamba",
            "zamba2", "zaya",
        ),
        STATES,
    ),
    **dict.fromkeys(("axk2", "deepseek_v32", "deepseek_v4", "dots3_note", "dots3_note_text", "glm_moe_dsa", "hy_v4"), INDEXED),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), SHARED),
}  # fmt: skip
"""Model type → what its layers keep where its configuration does not say another thing."""
_DECODES = ("ForCausalLM", "LMHeadModel")
"""Ends of the names of architectures that decode token by token with one cache."""


def kept_besides(config: Json) -> str | None:
    """Say, as a clause, what the layers of a language model keep that is not keys and values of their own for each token; None where it is
    those alone, or the model is none that decodes, or its configuration does not tell."""
    names = config.get("architectures")
    if isinstance(names, list) and names and not str(names[0]).endswith(_DECODES):
        return None
    nested = config.get("text_config")
    return next((clause for part in (config, nested) if isinstance(part, Mapping) and (clause := _of(part))), None)


def _of(config: Mapping[str, object]) -> str | None:
    lists = [value for key in _LISTS if isinstance(value := config.get(key), list)]
    kinds = {kind for value in lists for kind in value if isinstance(kind, str)}
    if clause := next((_KINDS[kind] for kind in sorted(kinds) if kind in _KINDS), None):
        return clause
    shared = config.get("num_kv_shared_layers")
    if isinstance(shared, int):
        return SHARED if shared > 0 else None
    kind = config.get("model_type")
    return None if kinds or not isinstance(kind, str) else _FAMILIES.get(kind)
