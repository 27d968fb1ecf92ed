"""Sound models that are unlike those that people usually train: each must pass every check, since nothing is wrong with it.

`python -m tests.validate.odd_models NAME FOLDER` makes one; `test_odd_models.py` exports them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.models import TEXTS, make_tokenizer

PLAIN: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": False, "initializer_range": 0.1,
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
}  # fmt: skip
"""Sizes of a small decoder, in the names that most architectures have."""


def character_tokenizer() -> Any:
    """One token for each of 35 characters; anything else is unknown."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = ["<|pad|>", "<|end|>", "<unk>", *"abcdefghijklmnopqrstuvwxyz():=.,_ \n"]
    tokenizer = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(letters)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>", unk_token="<unk>")


def _nothing(model: Any) -> None:
    pass


def _scaled_head(factor: float) -> Callable[[Any], None]:
    def scale(model: Any) -> None:
        model.get_output_embeddings().weight.data.mul_(factor)

    return scale


@dataclass(frozen=True)
class Odd:
    """One kind of sound model, and how its adapter was trained."""

    name: str
    kind: str = "llama"
    """transformers' model type."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of its configuration, over PLAIN; None leaves a key of PLAIN out."""
    change: Callable[[Any], None] = _nothing
    """What is done to the base's weights."""
    dtype: str = "float32"
    """In which the base is stored."""
    lora: dict[str, Any] = field(default_factory=dict)
    tokenizer: Callable[[], Any] = make_tokenizer
    steps: int = 6
    rate: float = 1e-2
    training: str = "float32"
    """Dtype in which the model is trained."""


_GPT2 = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "hidden_size": None, "intermediate_size": None, "num_hidden_layers": None,
    "num_attention_heads": None, "num_key_value_heads": None, "head_dim": None, "max_position_embeddings": None,
    "tie_word_embeddings": True,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "decoder_sparse_step": 1, "norm_topk_prob": True}
_ATTENTION = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
ODD = (
    Odd("untrained", settings={"initializer_range": 0.02}, steps=1, rate=1e-4),
    Odd("adapter that learnt nothing yet", steps=0),
    Odd("one layer", settings={"num_hidden_layers": 1}),
    Odd("one head", settings={"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}),
    Odd("tiny vocabulary", settings={"vocab_size": 38}, tokenizer=character_tokenizer),
    Odd("huge vocabulary", settings={"vocab_size": 151_936, "hidden_size": 32, "head_dim": 8}),
    Odd("peaked logits", change=_scaled_head(30.0), rate=1e-3),
    Odd("flat logits", change=_scaled_head(1e-3)),
    Odd("bf16 trained", dtype="bfloat16", training="bfloat16"),
    Odd("fp16 base", dtype="float16"),
    Odd("long positions", settings={"max_position_embeddings": 131_072}),
    Odd("tied", settings={"tie_word_embeddings": True}),
    Odd("tied, head and embedding trained", settings={"tie_word_embeddings": True},
        lora={"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    Odd("one key and value head", settings={"num_key_value_heads": 1}),
    Odd("heads wider than the model", settings={"head_dim": 40}),
    Odd("biases", "qwen2"),
    Odd("norms of queries and keys", "qwen3", {"tie_word_embeddings": True}),
    Odd("sliding window", "mistral", {"sliding_window": 32}),
    Odd("window in some layers", "gemma3_text", {"sliding_window": 32, "num_hidden_layers": 3, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 16}),
    Odd("soft caps", "gemma2", {"sliding_window": 64, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}),
    Odd("rope scaling of llama 3", settings={"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}),
    Odd("yarn", settings={"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}}),
    Odd("scaled residuals", "granite", {
        "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22, "attention_multiplier": 0.0625}),
    Odd("norms after", "olmo2"),
    Odd("parallel blocks", "phi", {"partial_rotary_factor": 0.5, "head_dim": None},
        lora={"target_modules": ["q_proj", "v_proj", "fc1", "fc2"]}),
    Odd("learnt positions", "gpt2", _GPT2, lora={"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    Odd("experts", "qwen3_moe", {**_EXPERTS, "mlp_only_layers": []}, lora=_ATTENTION),
    Odd("many experts in bf16", "qwen3_moe", {**_EXPERTS, "num_experts": 16, "mlp_only_layers": [], "num_hidden_layers": 4,
        "initializer_range": 0.03}, dtype="bfloat16", rate=1e-3),
    Odd("experts of Mixtral in bf16", "mixtral", {
        "num_local_experts": 8, "num_experts_per_tok": 2, "num_hidden_layers": 4, "initializer_range": 0.03}, dtype="bfloat16", rate=1e-3),
    Odd("experts and dense layers", "qwen3_moe", {**_EXPERTS, "mlp_only_layers": [0]}, lora=_ATTENTION),
    Odd("experts of Mixtral", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, lora=_ATTENTION),
)  # fmt: skip


def make(odd: Odd, folder: Path) -> Path:
    """A base in `folder`/base and an adapter's checkpoint of it, as training leaves it; the checkpoint."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    options = {key: value for key, value in {**PLAIN, **odd.settings}.items() if value is not None or key == "bos_token_id"}
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(odd.kind, **options))
    odd.change(base)
    base.to(getattr(torch, odd.dtype)).save_pretrained(folder / "base")
    odd.tokenizer().save_pretrained(folder / "base")
    # Some architectures have a class of their own, which splits texts by its own rule, whatever the file says: the file gets that rule.
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    settings = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", "target_modules": "all-linear", **odd.lora}
    plain = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=getattr(torch, odd.training))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's own keys for parameters of experts match no module, and it says so
        model = get_peft_model(plain, LoraConfig(**settings), autocast_adapter_dtype=odd.training == "float32")
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=odd.rate)
    for _ in range(odd.steps):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    checkpoint = folder / "run" / f"checkpoint-{max(1, odd.steps)}"
    model.save_pretrained(checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": max(1, odd.steps), "log_history": []}))
    return checkpoint


if __name__ == "__main__":
    make(next(odd for odd in ODD if odd.name == sys.argv[1]), Path(sys.argv[2]))
