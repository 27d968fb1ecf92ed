"""Adapters that PEFT trained with biases and a saved head, and halves of a tied adapter: the merge answers as PEFT's live model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from handlers.merge import merge_adapter
from tests.merge import zoo

HEADS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
IDS = torch.arange(3, 19)[None]
Make = Callable[[str], Any]


def config_of(family: str) -> Any:
    import transformers

    sizes = {
        "vocab_size": zoo.VOCABULARY, "hidden_size": zoo.WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 66, "initializer_range": 0.2, "num_labels": 3, "pad_token_id": 0,
    }  # fmt: skip
    own = {"Llama": {"num_key_value_heads": 2, "attention_bias": True}, "Qwen2": {"num_key_value_heads": 2}}.get(family, {})
    return getattr(transformers, f"{family}Config")(**sizes, **own)


def load(family: str, head: str, folder: Path) -> Any:
    import transformers

    return getattr(transformers, family + head).from_pretrained(folder, num_labels=3).eval()


def make_base(family: str, head: str, folder: Path) -> Path:
    import transformers

    torch.manual_seed(1)
    model = getattr(transformers, family + head)(config_of(family))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name.lower() and "weight" in name else 0.0, 0.1)
    model.save_pretrained(folder)
    return folder


def answer(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=IDS).logits


BASES = {"Bert": "ForMaskedLM", "Roberta": "ForMaskedLM", "Llama": "ForCausalLM", "Qwen2": "ForCausalLM"}
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
CASES = [
    (pytest.param if (family, task) in (("Bert", "TOKEN_CLS"), ("Roberta", "SEQ_CLS")) and bias == "all" else SLOW)(
        family, task, bias, headed, id=f"{family}-{task}-{bias}-{'its own' if headed else 'new'} head"
    )
    for family in BASES
    for task in HEADS
    for bias in ("none", "lora_only", "all")
    for headed in (True, False)
    # The pooler of a new sentence classifier is random, and an adapter that does not save it is refused: `test_odd_adapters`.
    if headed or (family, task) != ("Bert", "SEQ_CLS")
]


@pytest.mark.parametrize(("family", "task", "bias", "headed"), CASES)
def test_biases_and_a_saved_head_are_merged_as_peft_answers(family: str, task: str, bias: str, headed: bool, tmp_path: Path) -> None:
    import peft

    head = HEADS[task]
    base = make_base(family, head if headed else BASES[family], tmp_path / "base")
    targets = ["query", "value"] if family in ("Bert", "Roberta") else ["q_proj", "v_proj"]
    config = peft.LoraConfig(task_type=task, r=4, lora_alpha=6, target_modules=targets, bias=bias)
    trained = peft.get_peft_model(load(family, head, base), config)
    zoo.randomize(trained)
    trained.save_pretrained(tmp_path / "adapter")
    with safe_open(tmp_path / "adapter" / "adapter_model.safetensors", "pt") as stream:
        keys = list(stream.keys())
    if bias == "all" and family in ("Bert", "Roberta"):
        assert any(".original_module." in key for key in keys), "PEFT no longer writes what this is about"
    (tmp_path / "out").mkdir()
    assert merge_adapter(tmp_path / "adapter", base, tmp_path / "out").strategy == "streaming"
    live = peft.PeftModel.from_pretrained(load(family, head, base), tmp_path / "adapter").eval()
    wanted, got = answer(live), answer(load(family, head, tmp_path / "out"))
    assert torch.equal(wanted, answer(trained.eval()))
    assert (got - wanted).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max()))


def test_two_unequal_halves_of_one_tied_adapter_are_said_in_words_of_their_own(tmp_path: Path) -> None:
    import peft

    base = zoo.make("qwen3", tmp_path / "base", "bfloat16")
    lora = peft.LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"], task_type="CAUSAL_LM", ensure_weight_tying=True)
    for name, autocast in (("parted", True), ("one", False)):
        torch.manual_seed(2)
        model = peft.get_peft_model(zoo.load("qwen3", base, "bfloat16"), lora, autocast_adapter_dtype=autocast)
        optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5)
        for _ in range(2):
            model(input_ids=IDS, labels=IDS).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.save_pretrained(tmp_path / name)
        (tmp_path / f"{name}-out").mkdir()
    (said,) = merge_adapter(tmp_path / "parted", base, tmp_path / "parted-out").warnings
    assert "trained with ensure_weight_tying, but PEFT saved different values for its two parts" in said
    assert "autocast_adapter_dtype=False" in said
    assert merge_adapter(tmp_path / "one", base, tmp_path / "one-out").warnings == ()
    live = zoo.logits("qwen3", zoo.attached("qwen3", base, tmp_path / "parted", "bfloat16"))
    got = zoo.logits("qwen3", zoo.load("qwen3", tmp_path / "parted-out", "bfloat16"))
    assert (got - live).abs().max() < 0.03 * live.abs().max()
