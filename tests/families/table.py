"""Families of transformers that are exported as tiny random models: one row each, and how a configuration becomes tiny.

Used by `stock`, whose process has nothing of ckptd: nothing of it is imported here. A row is a `model_type` of transformers; all sizes are
shrunk by the names of the settings that the family's own configuration has, and a row adds only what that leaves impossible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VOCABULARY = 320
"""Tokens of the tests' tokenizer."""
DECODER, PAIR, MASKED, CLASSES = "decoder", "encoder-decoder", "encoder", "classifier"
AUTO = {
    DECODER: "AutoModelForCausalLM", PAIR: "AutoModelForSeq2SeqLM", MASKED: "AutoModelForMaskedLM",
    CLASSES: "AutoModelForSequenceClassification",
}  # fmt: skip
"""Kind of model → the auto class that makes and loads it."""


def _each(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


SIZES: Mapping[str, Any] = {
    **_each(2, "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_decoder_layers num_encoder_layers"),
    **_each(4, "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_encoder_attention_heads"),
    **_each(4, "num_decoder_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts"),
    **_each(2, "num_key_value_heads num_experts_per_tok moe_k moe_topk"),
    **_each(64, "hidden_size n_embd d_model dim word_embed_proj_dim embedding_size"),
    **_each(128, "intermediate_size n_inner ffn_dim d_ff hidden_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size intermediate_size_mlp"),
    **_each(16, "head_dim d_kv"),
    **_each(32, "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size shared_intermediate_size"),
    **_each(256, "max_position_embeddings n_positions max_seq_len"),
    **_each(0.2, "initializer_range init_std"),
    **_each(None, "forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens"),
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
"""Name of a setting → its value, where a family's configuration has such a setting and it is not an object of its own."""

_LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
"""Multi-head latent attention."""
_GROUPS = {"n_group": 1, "topk_group": 1}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_expand": 2, "mamba_chunk_size": 16}
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip

_NAMES: Mapping[str, str] = {
    DECODER: """
        llama mistral qwen2 qwen3 phi3 gemma3_text gpt2 mamba2 bamba falcon_h1 qwen3_next lfm2 granitemoehybrid gemma3n_text
        qwen3_moe mixtral olmoe gpt_oss gemma gemma2 gemma4_text olmo olmo2 olmo3 granite granitemoe glm glm4 glm4_moe
        cohere cohere2 starcoder2 gpt_neox gptj gpt_neo gpt_bigcode bloom opt falcon mpt phi phimoe codegen xglm biogpt
        mamba falcon_mamba jamba zamba2 recurrent_gemma nemotron_h olmo_hybrid minimax lfm2_moe qwen3_5_text rwkv nemotron
        stablelm persimmon deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe smollm3 exaone4
        seed_oss apertus arcee bitnet helium ministral minimax_m2 longcat_flash diffllama doge jetmoe internlm3 nanochat
        afmoe flex_olmo vaultgemma minicpm3 youtu ctrl openai-gpt xlnet llama4_text mimo_v2_flash cwm solar_open
        modernbert-decoder qwen2_moe granitemoeshared deepseek_v4 glm4_moe_lite kimi_linear qwen3_5_moe_text ministral3 deepseek_v32
    """,
    PAIR: """
        t5 bart marian mbart pegasus m2m_100 mt5 umt5 longt5 led blenderbot blenderbot-small plbart prophetnet bigbird_pegasus pegasus_x mvp
        switch_transformers fsmt nllb-moe
    """,
    MASKED: """
        bert roberta distilbert deberta-v2 deberta modernbert electra xlm-roberta mpnet albert camembert convbert ernie fnet funnel ibert
        layoutlm longformer megatron-bert mobilebert nomic_bert nystromformer rembert roformer squeezebert esm big_bird eurobert yoso
        roberta-prelayernorm data2vec-text xmod
    """,
    CLASSES: "bert distilbert deberta-v2 modernbert llama gpt2 canine",
}
"""Kind of model → the families, by their `model_type`: those first of which most is asked."""
_MORE: Mapping[str, dict[str, Any]] = {
    "llama/decoder": {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }},
    "gemma3_text": {"query_pre_attn_scalar": 16}, "gemma2": {"query_pre_attn_scalar": 16},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 16, "expand": 2},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 128},
    "qwen3_next": _LINEAR, "qwen3_5_text": _LINEAR, "qwen3_5_moe_text": {**_LINEAR, "initializer_range": 0.1},
    "kimi_linear": {
        **_LATENT, "q_lora_rank": None, "num_experts_per_token": 2, "linear_head_dim": 16, "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]}, "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"]},
    "minimax": {"layer_types": ["linear_attention", "full_attention"]},
    "gemma3n_text": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 320, "hidden_size_per_layer_input": 16,
        "laurel_rank": 8, "altup_num_inputs": 2, "intermediate_size": 128, "activation_sparsity_pattern": [0.0] * 4,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
    "gemma4_text": {
        "vocab_size_per_layer_input": 320, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0, "global_head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "glm4_moe": {**_GROUPS, "first_k_dense_replace": 1}, "gptj": {"rotary_dim": 8}, "codegen": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "falcon": {"alibi": False, "new_decoder_architecture": False},
    "phi": {"num_key_value_heads": 4}, "persimmon": {"num_key_value_heads": 4},
    "mamba": {"state_size": 8}, "falcon_mamba": {"state_size": 8},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_d_state": 8, "use_mamba_kernels": False},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1], "mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 16,
        "mamba_ngroups": 1, "chunk_size": 16, "num_key_value_heads": 4, "attention_head_dim": 32, "use_mem_rope": True,
    },
    "recurrent_gemma": {"lru_width": 64, "attention_window_size": 32, "block_types": ["recurrent", "attention"]},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1,
        "chunk_size": 16,
    },
    "deepseek_v2": {**_LATENT, **_GROUPS, "first_k_dense_replace": 1}, "deepseek_v3": {**_LATENT, **_GROUPS, "first_k_dense_replace": 1},
    "deepseek_v32": {  # with few heads many scores of the index are 0, and which of them are taken is chance
        **_LATENT, **_GROUPS, "first_k_dense_replace": 1, "index_topk": 12, "index_head_dim": 16, "index_n_heads": 32,
    },
    "longcat_flash": _LATENT, "youtu": _LATENT, "glm4_moe_lite": _LATENT,
    "ministral3": {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1,
    }},
    "roberta": {"max_position_embeddings": 258}, "xlm-roberta": {"max_position_embeddings": 258},
    "camembert": {"max_position_embeddings": 258}, "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}  # fmt: skip
"""What a family's configuration needs besides, by its type, or by type and kind."""
FAMILIES: tuple[str, ...] = tuple(f"{name}/{kind}" for kind, names in _NAMES.items() for name in names.split())


def tiny_settings(family: str, default: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a model of the family tiny. `default`: its configuration as transformers makes it."""
    name, _, kind = family.partition("/")
    small = {key: value for key, value in SIZES.items() if key in default and not isinstance(default[key], dict)}
    if default.get("num_key_value_heads", 0) == default.get("num_attention_heads"):
        small["num_key_value_heads"] = small["num_attention_heads"]
    small |= {
        "vocab_size": VOCABULARY,
        **({"num_labels": 3} if kind == CLASSES else {"decoder_start_token_id": 0} if kind == PAIR else {}),
        **_MORE.get(name, {}),
        **_MORE.get(family, {}),
    }
    return small
