"""Tiny models of many families, made here with random weights, for the merge's matrix."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 96
WIDTH = 32
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Family:
    """A model family: how to make one, what its adapters target, what to feed it."""

    make: Callable[[], Any]
    auto: str
    """The auto class that loads it."""
    targets: tuple[str, ...]
    inputs: str = "ids"
    task: str | None = "CAUSAL_LM"

    def example(self) -> dict[str, Any]:
        """Inputs for one forward pass."""
        import torch

        ids = torch.arange(3, 19)[None]
        if self.inputs == "pixels":
            return {"pixel_values": torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)}
        if self.inputs == "audio":
            return {"input_values": torch.linspace(-1, 1, 1600).sin()[None]}
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7]} if self.inputs == "pair" else {"input_ids": ids}


def _decoder(name: str, **options: Any) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2, "pad_token_id": 0,
        "eos_token_id": 1, "bos_token_id": 2,
    }  # fmt: skip
    config = getattr(transformers, f"{name}Config")(**{**common, **options})
    return getattr(transformers, f"{name}ForCausalLM")(config)


def _gpt_oss() -> Any:
    import transformers

    config = transformers.GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, initializer_range=0.2, pad_token_id=0,
        tie_word_embeddings=False, layer_types=["full_attention"],
    )  # fmt: skip
    return transformers.GptOssForCausalLM(config)


def _gpt2() -> Any:
    import transformers

    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=WIDTH, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCABULARY, initializer_range=0.2)
    )


def _bert() -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def _t5() -> Any:
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=0.5, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _marian() -> Any:
    import transformers

    config = transformers.MarianConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, init_std=0.2, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0, forced_eos_token_id=1,
    )  # fmt: skip
    return transformers.MarianMTModel(config)


def _resnet() -> Any:
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
    return transformers.ResNetForImageClassification(config)


def _wav2vec() -> Any:
    import transformers

    config = transformers.Wav2Vec2Config(
        vocab_size=24, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, conv_dim=[16, 16],
        conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    return transformers.Wav2Vec2ForCTC(config)


_causal = functools.partial(functools.partial, _decoder)
FAMILIES: dict[str, Family] = {
    "llama": Family(_causal("Llama", tie_word_embeddings=False), "AutoModelForCausalLM", tuple(LINEAR)),
    "qwen3": Family(_causal("Qwen3", tie_word_embeddings=True), "AutoModelForCausalLM", tuple(LINEAR)),
    "qwen3-moe": Family(
        _causal("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, tie_word_embeddings=False),
        "AutoModelForCausalLM", tuple(ATTENTION),
    ),
    "gemma": Family(_causal("Gemma", tie_word_embeddings=True), "AutoModelForCausalLM", tuple(LINEAR)),
    "mistral": Family(_causal("Mistral", tie_word_embeddings=False), "AutoModelForCausalLM", tuple(LINEAR)),
    "phi": Family(
        _causal("Phi", tie_word_embeddings=False, num_key_value_heads=4), "AutoModelForCausalLM",
        ("q_proj", "v_proj", "dense", "fc1", "fc2"),
    ),
    "mixtral": Family(
        _causal("Mixtral", num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False), "AutoModelForCausalLM", tuple(ATTENTION)
    ),
    "gpt-oss": Family(_gpt_oss, "AutoModelForCausalLM", ("q_proj", "v_proj")),
    "gpt2": Family(_gpt2, "AutoModelForCausalLM", ("c_attn", "c_proj", "c_fc")),
    "bert": Family(_bert, "AutoModelForMaskedLM", ("query", "key", "value", "dense"), task=None),
    "t5": Family(_t5, "AutoModelForSeq2SeqLM", ("q", "k", "v", "o", "wi", "wo"), "pair", "SEQ_2_SEQ_LM"),
    "marian": Family(_marian, "AutoModelForSeq2SeqLM", ("q_proj", "v_proj", "out_proj", "fc1", "fc2"), "pair", "SEQ_2_SEQ_LM"),
    "resnet": Family(_resnet, "AutoModelForImageClassification", ("convolution",), "pixels", None),
    "wav2vec2": Family(_wav2vec, "AutoModelForCTC", ("q_proj", "v_proj", "feature_extractor.conv_layers.1.conv"), "audio", None),
}  # fmt: skip


def make(name: str, folder: Path, dtype: str) -> Path:
    """A base of the family, with random norms and biases too, so that nothing is neutral."""
    import torch

    torch.manual_seed(11)
    model = FAMILIES[name].make()
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key.lower() and "weight" in key else 0.0, 0.1)
    model.to(getattr(torch, dtype)).eval().save_pretrained(folder)
    return folder


def load(name: str, folder: Path, dtype: str) -> Any:
    """The model of a folder, by the family's auto class."""
    import torch
    import transformers

    return getattr(transformers, FAMILIES[name].auto).from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def randomize(model: Any) -> None:
    """Random values for everything that an adapter saves, so that no delta is zero and nothing keeps its start."""
    import torch

    for name, parameter in model.named_parameters():
        if "ranknum" in name or not (parameter.requires_grad or "lora_" in name):
            continue
        if "lora_" in name and "magnitude" not in name and not name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        else:
            parameter.data.add_(0.1 * torch.randn_like(parameter) * (parameter.abs().mean() + 0.1))


def adapt(name: str, base: Path, folder: Path, *, method: str = "LoraConfig", seed: int = 3, **options: Any) -> Path:
    """An adapter of the family saved by PEFT, trained in fp32."""
    import peft
    import torch

    torch.manual_seed(seed)
    family = FAMILIES[name]
    defaults: dict[str, Any] = {"r": 4, "lora_alpha": 6, "target_modules": list(family.targets), "task_type": family.task}
    model = peft.get_peft_model(load(name, base, "float32"), getattr(peft, method)(**{**defaults, **options}))
    randomize(model)
    model.save_pretrained(folder)
    return folder


def logits(name: str, model: Any) -> Any:
    """The model's answer to the family's example, computed in fp32."""
    import torch

    with torch.no_grad():
        return model.float().eval()(**FAMILIES[name].example()).logits


def attached(name: str, base: Path, adapter: Path, dtype: str) -> Any:
    """Base and adapter as PEFT joins them."""
    from peft import PeftModel

    return PeftModel.from_pretrained(load(name, base, dtype), adapter)
