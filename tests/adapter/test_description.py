"""What a published adapter says of itself: its configuration, its base, and the servers that can't use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from handlers.adapter import card
from handlers.adapter.config import cleaned
from handlers.adapter.servers import max_lora_rank, unsuited
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.weights.base_digest import base_digest
from handlers.models.folder import ModelFolder
from handlers.models.hub import BaseName, name_of
from tests.adapter.publishing import publish
from tests.merge import helpers

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CACHE = f"/home/me/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/{COMMIT}"
LORA: dict[str, Any] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"], "bias": "none"}
FACTORS = tuple(f"base_model.model.model.layers.0.self_attn.{name}.lora_{side}.weight" for name in ("q_proj", "v_proj") for side in "AB")


def adapter_of(*keys: str, **config: Any) -> Adapter:
    """An adapter as far as its configuration and the names of its tensors go."""
    return Adapter(Path("a"), Path("a/adapter_model.safetensors"), {**LORA, **config}, dict.fromkeys(keys or FACTORS, (8, 64)), {}, {})


def test_a_configuration_loses_what_says_nothing_and_keeps_what_acts() -> None:
    config = cleaned(
        {**LORA, "peft_version": "0.21.2", "corda_config": None, "use_qalora": False, "qalora_group_size": 16, "loftq_config": {},
         "megatron_core": "megatron.core", "megatron_config": None, "runtime_config": {"ephemeral_gpu_offload": True},
         "exclude_modules": ["lm_head"], "layer_replication": None, "lora_bias": True, "inference_mode": False},
        "org/base",
    )  # fmt: skip
    assert config == {
        "base_model_name_or_path": "org/base", "bias": "none", "exclude_modules": ["lm_head"], "inference_mode": True, "lora_alpha": 16,
        "lora_bias": True, "peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"],
    }  # fmt: skip


@pytest.mark.parametrize("initializer", [True, False, "gaussian", "eva", "orthogonal"])
def test_an_initializer_that_leaves_the_base_alone_is_not_published_with_its_files(initializer: Any) -> None:
    config = cleaned({**LORA, "init_lora_weights": initializer, "eva_config": {"rho": 2}, "corda_config": {"cache_file": "/tmp/x"}}, "b")
    assert config["init_lora_weights"] is True and not {"eva_config", "corda_config"} & config.keys()


@pytest.mark.parametrize(("initializer", "own"), [("pissa", {}), ("loftq", {"loftq_config": {"loftq_bits": 4}})])
def test_an_initializer_that_changes_the_base_is_kept(initializer: str, own: dict[str, Any]) -> None:
    config = cleaned({**LORA, "init_lora_weights": initializer, **own}, "b")
    assert config["init_lora_weights"] == initializer and own.items() <= config.items()


def test_a_false_that_is_no_default_and_a_key_that_nobody_knows_are_kept() -> None:
    vera = cleaned({"peft_type": "VERA", "r": 8, "save_projection": False, "projection_prng_key": 3, "vera_dropout": 0.0}, "b")
    assert vera["save_projection"] is False and vera["projection_prng_key"] == 3
    assert cleaned({**LORA, "of_tomorrow": None}, "b")["of_tomorrow"] is None
    assert cleaned({"peft_type": "OF_TOMORROW", "key": None}, "b")["key"] is None


def test_the_order_of_patterns_decides_and_is_kept() -> None:
    patterns = {"v_proj": 2, "layers.0.self_attn.v_proj": 4}
    assert list(cleaned({**LORA, "rank_pattern": patterns}, "b")["rank_pattern"]) == list(patterns)


@pytest.mark.parametrize(
    ("named", "folder", "expected"),
    [
        ("Qwen/Qwen3-0.6B", "/models/qwen", BaseName("Qwen/Qwen3-0.6B")),
        ("Qwen/Qwen3-0.6B", CACHE, BaseName("Qwen/Qwen3-0.6B", COMMIT)),
        ("gpt2", "/models/gpt2", BaseName("gpt2")),
        ("other/name", CACHE, BaseName("other/name")),
        (CACHE, "/models/qwen", BaseName("Qwen/Qwen3-0.6B", COMMIT)),
        (f"{CACHE}/", CACHE, BaseName("Qwen/Qwen3-0.6B", COMMIT)),
        ("/models/qwen", CACHE, BaseName("Qwen/Qwen3-0.6B", COMMIT)),
        ("/models/qwen", "/models/qwen", BaseName("/models/qwen", local=True)),
        ("./qwen", "/models/qwen", BaseName("./qwen", local=True)),
        ("../models/qwen", "/models/qwen", BaseName("../models/qwen", local=True)),
        (None, "/models/qwen", BaseName(None)),
        (None, CACHE, BaseName("Qwen/Qwen3-0.6B", COMMIT)),
    ],
)
def test_a_base_is_named_as_others_know_it(named: str | None, folder: str, expected: BaseName) -> None:
    assert name_of(named, Path(folder)) == expected


def test_the_folder_says_which_base_it_belongs_to(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    helpers.edit_config(adapter, base_model_name_or_path="org/pico", revision="v2")
    one = publish(adapter, pico_base, tmp_path / "work")
    told = json.loads((one.folder / "adapter_base.json").read_text())
    digest = base_digest(ModelFolder(pico_base), tmp_path / "cache", lambda count: None)
    assert (told["base_model_name_or_path"], told["revision"], told["digest"]) == ("org/pico", "v2", digest)
    assert json.loads((one.folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "org/pico"
    told = ModelCard.load(one.folder / "README.md")
    assert told.data.to_dict() == {
        "base_model": "org/pico", "base_model_relation": "adapter", "library_name": "peft", "pipeline_tag": "text-generation",
        "tags": ["ckptd", "peft", "lora"],
    }  # fmt: skip
    assert digest in told.text
    assert one.output.warnings == []


def test_a_base_that_only_this_box_knows_is_told(pico_base: Path, tmp_path: Path) -> None:
    one = publish(helpers.make_adapter(pico_base, tmp_path / "adapter"), pico_base, tmp_path / "work")
    (warning,) = one.output.warnings
    assert f"by a folder of this machine ({pico_base})" in warning
    text = (one.folder / "README.md").read_text()
    assert "base_model:" not in text and str(pico_base.parent) not in text and pico_base.name in text


def test_a_plain_lora_suits_all_servers() -> None:
    assert unsuited(adapter_of(), "causal") == {}
    assert unsuited(adapter_of(use_rslora=True), "causal") == {}
    assert unsuited(adapter_of(rank_pattern={"v_proj": 4}, alpha_pattern={"v_proj": 8}), "causal") == {}, "one scale all the same"


@pytest.mark.parametrize(
    ("adapter", "vllm", "others"),
    [
        (adapter_of(*FACTORS, FACTORS[0].replace("lora_A.weight", "lora_magnitude_vector"), use_dora=True), "refuses DoRA", "ignore"),
        (adapter_of(*FACTORS, "base_model.model.lm_head.weight", modules_to_save=["lm_head"]), "refuses modules_to_save", "lm_head.weight"),
        (adapter_of(bias="lora_only"), "bring biases", ""),
        (adapter_of(alpha_pattern={"v_proj": 99}), "the same scale", "the same scale"),
        (adapter_of(init_lora_weights="pissa"), "initializer pissa changed the base", "initializer pissa"),
        (
            adapter_of(*FACTORS, "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"),
            "trainable_tokens_delta",
            "ignore",
        ),
        (adapter_of(peft_type="IA3"), "this is IA3", "this is IA3"),
        (adapter_of(r=1024, lora_alpha=2048), "ranks up to 512", ""),
        (adapter_of("base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"), "", "c_attn"),
        (adapter_of(layers_to_transform=[0]), "", "only in some layers"),
    ],
)
def test_what_a_server_can_not_do_is_said(adapter: Adapter, vllm: str, others: str) -> None:
    found = {name: "; ".join(reasons) for name, reasons in unsuited(adapter, "causal").items()}
    for server, clause in (("vLLM", vllm), ("TGI and LoRAX", others)):
        assert (clause in found[server]) if clause else (server not in found)


def test_other_models_than_language_models_are_not_for_tgi() -> None:
    assert "decoder-only" in unsuited(adapter_of(), "encoder")["TGI and LoRAX"][0]


@pytest.mark.parametrize(("rank", "asked"), [(8, None), (16, None), (24, 32), (64, 64), (300, 320), (600, None)])
def test_the_rank_that_vllm_must_be_started_with_is_one_that_it_takes(rank: int, asked: int | None) -> None:
    assert max_lora_rank(adapter_of(r=rank)) == asked


def test_names_from_the_adapter_are_no_markup_in_the_card() -> None:
    text = card.text(adapter_of(), BaseName("x`\n# y <b>", local=True), None, "0" * 64, {"vLLM": ["on <script> [a](b) `c`"]}, None, None)
    assert "\n# y" not in text and "<script>" not in text and "[a](b)" not in text.replace("\\[", "")
