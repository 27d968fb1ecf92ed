"""What streaming does not know goes to PEFT, says so, and still answers like the live adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.merge import merge_adapter
from tests import models
from tests.merge import helpers

IDS = torch.arange(2, 34)[None]


@pytest.fixture(scope="module")
def base32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make_base(tmp_path_factory.mktemp("bases") / "fp32", dtype="float32")


def merge(adapter: Path, base: Path, output: Path) -> Any:
    output.mkdir()
    return merge_adapter(adapter, base, output)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"modules_to_save": ["norm"]}, "modules_to_save"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "embed"),
        ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
        ({"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True}, "lm_head"),
        ({"trainable_token_indices": [5, 6, 7]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa"}, "initializer pissa"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_other_kinds_of_adapter_match_the_live_model_and_name_the_fallback(
    base32: Path, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:  # R1.2 R1.5
    adapter = helpers.make_adapter(base32, tmp_path / "adapter", **options)
    report = merge(adapter, base32, tmp_path / "out")
    assert report.strategy == "peft"
    assert [(one.wanted, one.taken) for one in report.fallbacks] == [("streaming", "peft")]
    assert reason in report.fallbacks[0].reason
    live = helpers.live_logits(base32, adapter, IDS)
    assert (helpers.logits(tmp_path / "out", IDS) - live).abs().max() < 2e-4
    assert (helpers.logits(base32, IDS) - live).abs().max() > 0.01
    assert report.changed_parameters > 0


@pytest.mark.parametrize("side", ["embed_tokens", "lm_head"])
def test_an_adapter_on_one_end_of_a_tied_pair_unties_it_in_config_and_weights(base32: Path, tmp_path: Path, side: str) -> None:
    adapter = helpers.make_adapter(base32, tmp_path / "adapter", target_modules=[side])
    report = merge(adapter, base32, tmp_path / "out")
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (base32, tmp_path / "out"))
    assert before["tie_word_embeddings"] is True
    assert after == {**before, "tie_word_embeddings": False}
    assert "lm_head.weight" in helpers.stored(tmp_path / "out")
    assert any("no longer tied" in warning for warning in report.warnings)


def test_an_adapter_that_leaves_the_tie_alone_leaves_config_as_it_is(base32: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(base32, tmp_path / "adapter", use_dora=True)
    merge(adapter, base32, tmp_path / "out")
    assert (tmp_path / "out/config.json").read_bytes() == (base32 / "config.json").read_bytes()
    assert helpers.stored(tmp_path / "out").keys() == helpers.stored(base32).keys()


def test_a_vocabulary_resized_in_training_is_resized_in_the_output(base32: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base32, dtype=torch.float32)
    model.resize_token_embeddings(333, mean_resizing=False)
    live = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False))
    live.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    assert isinstance(live, PeftModel)
    merge(tmp_path / "adapter", base32, tmp_path / "out")
    with torch.no_grad():
        expected = live.eval()(input_ids=IDS).logits
    assert json.loads((tmp_path / "out/config.json").read_text())["vocab_size"] == 333
    got = helpers.logits(tmp_path / "out", IDS)
    assert got.shape[-1] == 333
    assert (got - expected).abs().max() < 2e-4


def test_a_pickled_base_is_merged_and_written_as_safetensors(base32: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for name in ("config.json", "generation_config.json"):
        (base / name).write_bytes((base32 / name).read_bytes())
    torch.save(helpers.stored(base32), base / "pytorch_model.bin")
    adapter = helpers.make_adapter(base32, tmp_path / "adapter")
    report = merge(adapter, base, tmp_path / "out")
    assert "pickled" in report.fallbacks[0].reason
    expected = helpers.reference(base32, adapter, "float32")
    written = helpers.stored(tmp_path / "out")
    assert written.keys() == helpers.stored(base32).keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written.items())


def test_a_base_quantized_by_bitsandbytes_is_dequantized_and_says_so(pico_base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(
        pico_base, dtype=torch.bfloat16, quantization_config=BitsAndBytesConfig(load_in_8bit=False, load_in_4bit=True)
    ).save_pretrained(base)
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    report = merge(adapter, base, tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config
    assert "quantized" in report.fallbacks[0].reason
    assert any("dequantized to bfloat16" in warning for warning in report.warnings)
    error = (helpers.logits(tmp_path / "out", IDS) - helpers.live_logits(pico_base, adapter, IDS)).abs().mean()
    assert error < 0.8


def test_square_conv1d_weights_without_the_flag_are_left_to_peft(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base = tmp_path / "base"
    GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=1, n_head=4, n_positions=64, vocab_size=320)).save_pretrained(base)
    adapter = helpers.make_adapter(base, tmp_path / "adapter", target_modules=["attn.c_proj", "c_attn"], fan_in_fan_out=True)
    helpers.edit_config(adapter, fan_in_fan_out=False)
    report = merge(adapter, base, tmp_path / "out")
    assert "orientation of square weights" in report.fallbacks[0].reason
    assert (helpers.logits(tmp_path / "out", IDS) - helpers.live_logits(base, adapter, IDS)).abs().max() < 2e-4
