"""Language models with random weights, one for each architecture that is written as GGUF, each with a tokenizer of its family's kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests import models

SMALL: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.15, "pad_token_id": 0, "eos_token_id": 1,
    "bos_token_id": None,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
GEMMA: dict[str, Any] = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64, "tie_word_embeddings": True}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("Llama", {"tie_word_embeddings": False}),
    "Llama, biases": ("Llama", {"attention_bias": True, "mlp_bias": False, "rms_norm_eps": 1e-4}),
    "Llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama, linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}}),
    "Llama, wide heads": ("Llama", {"head_dim": 32}),
    "Mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "Qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "Qwen2, YaRN": ("Qwen2", {"rope_parameters": YARN}),
    "Qwen3": ("Qwen3", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "Qwen2 MoE": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 96, "norm_topk_prob": False}),
    "Qwen3 MoE": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "Gemma": ("Gemma", {"head_dim": 16}),
    "Gemma 2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "Gemma 3": ("Gemma3", {**GEMMA, "num_hidden_layers": 7}),
    "Phi": ("Phi", {"partial_rotary_factor": 0.5, "num_key_value_heads": 4}),
    "Phi 3": ("Phi3", {"original_max_position_embeddings": 256}),
    "GPT-2": ("GPT2", {}),
}
"""Name → class of transformers, less "ForCausalLM", and what its configuration has beside SMALL."""


def make(name: str, folder: Path, dtype: str = "float32", **changes: Any) -> Path:
    """The folder of one of them."""
    import torch
    import transformers

    family, own = KINDS[name]
    options = {**SMALL, **own, **changes}
    if family == "GPT2":
        options = {
            "vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 1, "eos_token_id": 1,
            "initializer_range": 0.15, **changes,
        }  # fmt: skip
    config_of = {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config")
    torch.manual_seed(3)
    config = getattr(transformers, config_of)(**options)
    model = getattr(transformers, "GPT2LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")(config)
    for key, parameter in model.named_parameters():
        if "norm" in key or "ln_" in key:
            torch.nn.init.normal_(parameter, 0.0 if family.startswith("Gemma") or "bias" in key else 1.0, 0.2)
        elif key.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    (sentencepiece() if family in ("Mistral", "Gemma", "Gemma2", "Gemma3") else models.make_tokenizer()).save_pretrained(folder)
    return folder


def sentencepiece() -> Any:
    """A BPE of SentencePiece's kind with 320 tokens: a mark for spaces, and bytes for what it does not know."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
    from tokenizers import models as kinds
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    learned = Tokenizer(kinds.BPE(unk_token="<unk>"))
    learned.normalizer = normalizers.Replace(" ", "▁")
    learned.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=320 - 256, special_tokens=special, show_progress=False)
    learned.train_from_iterator(models.TEXTS * 4, trainer)
    said = json.loads(learned.to_str())["model"]
    vocabulary = {token: number for token, number in said["vocab"].items() if number < len(special)}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + [token for token in said["vocab"] if token not in vocabulary]:
        vocabulary[token] = len(vocabulary)
    merges = [tuple(pair) for pair in said["merges"]]
    whole = Tokenizer(kinds.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    whole.normalizer = normalizers.Replace(" ", "▁")
    whole.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    whole.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    whole.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    whole.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])])
    fast = PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>")
    fast.chat_template = models.CHAT_TEMPLATE
    return fast


def with_spaces(folder: Path, scheme: str, template: str) -> Path:
    """The tokenizer of a folder as transformers 5 saves those of Llama's class, and a chat template."""
    said = json.loads((folder / "tokenizer.json").read_bytes())
    said["normalizer"] = None
    said["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    said["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    (folder / "tokenizer.json").write_text(json.dumps(said))
    (folder / "chat_template.jinja").write_text(template)
    return folder
