"""Model types by how transformers 4.57 reads what transformers 5 saved and `older_readers` completed.

Measured on small models of every type that has them, and compared with this page: tests/older/test_reading.py.
"""

from __future__ import annotations

READ: frozenset[str] = frozenset({
    "albert", "arcee", "aria_text", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "bitnet", "blenderbot",
    "blenderbot-small", "bloom", "camembert", "codegen", "cohere", "cohere2", "convbert", "ctrl", "data2vec-text", "deberta",
    "deberta-v2", "diffllama", "distilbert", "electra", "ernie", "ernie4_5", "exaone4", "falcon", "falcon_h1", "falcon_mamba",
    "flex_olmo", "fnet", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_neox_japanese", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoeshared", "helium", "ibert", "internlm3", "iquestcoder",
    "jetmoe", "layoutlm", "led", "lfm2", "llama", "llama4_text", "longformer", "longt5", "m2m_100", "mamba", "marian", "mbart",
    "megatron-bert", "minimax", "mistral", "mixtral", "mobilebert", "modernbert", "modernbert-decoder", "moshi", "mpnet", "mpt", "mra",
    "mvp", "nllb-moe", "nystromformer", "olmo", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "pegasus", "pegasus_x", "persimmon",
    "phi", "phi3", "phimoe", "plbart", "prophetnet", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "rembert", "roberta",
    "roberta-prelayernorm", "roformer", "rwkv", "seamless_m4t", "seamless_m4t_v2", "seed_oss", "smollm3", "squeezebert", "stablelm",
    "starcoder2", "switch_transformers", "t5", "tapas", "trocr", "umt5", "whisper", "xglm", "xlm-roberta", "xlm-roberta-xl", "xlnet",
    "yoso",
})  # fmt: skip
"""The same logits, but for rounding."""
READ_EAGERLY: frozenset[str] = frozenset({
    "doge", "gemma2", "vaultgemma",
})  # fmt: skip
"""The same logits where it is told to compute the attention itself: its default leaves something out."""
NOT_READ: frozenset[str] = frozenset({
    "afmoe", "apertus", "beam", "cohere2_moe", "cpmant", "cwm", "deepseek_v4", "esmc", "eurobert", "exaone_moe", "flint",
    "gemma4_unified_text", "granite_swa", "granitemoe_swa", "gte", "hrm_text", "hy_v3", "hy_v4", "hyperclovax", "inkling2_text",
    "inkling_text", "jais2", "jina_embeddings_v3", "kolibri1", "laguna", "mellum", "mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text",
    "ministral3", "nanochat", "nemotron_h", "nomic_bert", "olmo_hybrid", "solar_open", "ultrabert",
})  # fmt: skip
"""It does not know the type, or it computes something else."""
