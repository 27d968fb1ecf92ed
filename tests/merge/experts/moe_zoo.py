"""Tiny mixture-of-experts models of many families, and the ways in which an adapter names their experts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY, WIDTH, EXPERT, EXPERTS = 96, 32, 24, 4


@dataclass(frozen=True)
class Moe:
    """A family: how to make a model, the path below a layer of the module that holds the experts, its linear layers, its router."""

    make: Callable[..., Any]
    experts: str
    linear: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    router: str = "mlp.gate.weight"


def _model(name: str, **options: Any) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": EXPERT, "moe_intermediate_size": EXPERT,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
        "initializer_range": 0.2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }  # fmt: skip
    kind = "Llama4Text" if name == "Llama4" else name
    config = getattr(transformers, f"{kind}Config")(**{**common, **options})
    return getattr(transformers, f"{name}ForCausalLM")(config)


def _family(name: str, experts: str, /, *, count: str = "num_experts", **options: Any) -> Moe:
    shown = {key: options.pop(key) for key in ("linear", "router") if key in options}
    return Moe(functools.partial(_model, name, **{count: EXPERTS}, **options), experts, **shown)


_MLA = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
FAMILIES: dict[str, Moe] = {
    "qwen3-moe": _family("Qwen3Moe", "mlp.experts"),
    "qwen2-moe": _family("Qwen2Moe", "mlp.experts", shared_expert_intermediate_size=20),
    "mixtral": _family("Mixtral", "mlp.experts", count="num_local_experts"),
    "olmoe": _family("Olmoe", "mlp.experts"),
    "deepseek-v3": _family(
        "DeepseekV3", "mlp.experts", count="n_routed_experts", n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1,
        num_key_value_heads=4, linear=("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"), head_dim=4, **_MLA,
    ),
    "granite-moe": _family("GraniteMoe", "block_sparse_moe.experts", count="num_local_experts", router="block_sparse_moe.router.weight"),
    "gpt-oss": _family("GptOss", "mlp.experts", count="num_local_experts", router="mlp.router.weight"),
    "llama4": _family(
        "Llama4", "feed_forward.experts", count="num_local_experts", intermediate_size_mlp=20, router="feed_forward.router.weight",
        attention_chunk_size=64, num_experts_per_tok=1,
    ),
}  # fmt: skip


def make(name: str, folder: Path, dtype: str, form: str = "safetensors", **options: Any) -> Path:
    """A base of the family, with random norms and biases too. `form`: "safetensors" as transformers writes it (each expert by itself
    where the family's files have them so), "fused" with the experts as they are in memory, "bin" as "safetensors" but pickled.
    `options`: settings of its configuration.
    """
    import torch
    from safetensors.torch import load_file

    torch.manual_seed(11)
    model = FAMILIES[name].make(**options)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key.lower() and "weight" in key else 0.0, 0.1)
        elif not parameter.any():
            torch.nn.init.normal_(parameter, 0.0, 0.2)
    model.to(getattr(torch, dtype)).eval().save_pretrained(folder, save_original_format=form != "fused")
    if form == "bin":
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


def ways(name: str) -> dict[str, dict[str, Any]]:
    """Settings of LoraConfig by name: the ways in which an adapter may name experts, and patterns that name parameters."""
    family = FAMILIES[name]
    experts, linear = family.experts, list(family.linear)
    both = [f"{experts}.gate_up_proj", f"{experts}.down_proj"]
    found: dict[str, dict[str, Any]] = {
        "all-linear": {"target_modules": "all-linear"},
        "parameters": {"target_modules": linear, "target_parameters": both},
        "experts alone": {"target_modules": [], "target_parameters": both},
        "one parameter": {"target_modules": linear, "target_parameters": ["experts.down_proj"]},
        "router": {"target_modules": linear, "target_parameters": [family.router, "experts.gate_up_proj"]},
        "rank of experts": {"target_modules": linear, "target_parameters": both, "rank_pattern": {"experts.gate_up_proj": 6}},
        "alpha of experts": {"target_modules": linear, "target_parameters": both, "alpha_pattern": {"gate_up_proj": 23, "o_proj": 3}},
        "expressions": {
            "target_modules": linear, "target_parameters": both,
            "rank_pattern": {r".*\.1\..*\.down_proj": 5, r"o_pro.": 2}, "alpha_pattern": {r".*\.experts\.(gate_up|down)_proj": 11},
        },
        "whole path": {
            "target_modules": linear, "target_parameters": both, "rank_pattern": {f"model.layers.1.{experts}.gate_up_proj": 7},
            "alpha_pattern": {f"layers.1.{experts}": 50},
        },
        "rank of the router": {"target_modules": linear, "target_parameters": [family.router], "rank_pattern": {family.router: 2}},
        "router by its module": {
            "target_modules": linear, "target_parameters": [family.router, both[0]],
            "alpha_pattern": {family.router.removesuffix(".weight"): 99},
        },
        "saved router": {"target_modules": linear, "modules_to_save": [family.router.split(".")[-2]], "target_parameters": both},
        "rsLoRA": {"target_modules": linear, "target_parameters": both, "use_rslora": True, "rank_pattern": {"down_proj": 6}},
    }  # fmt: skip
    if name == "llama4":
        del found["all-linear"]  # PEFT wraps its router, a linear layer that gives two tensors, and can't run it then
    return found


def adapt(name: str, base: Path, folder: Path, *, seed: int = 3, **options: Any) -> Path:
    """An adapter that PEFT saved, with random values in every factor."""
    import peft
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    defaults: dict[str, Any] = {"r": 4, "lora_alpha": 6, "task_type": "CAUSAL_LM"}
    model = peft.get_peft_model(model, peft.LoraConfig(**{**defaults, **options}))
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder


def legacy_ways(name: str) -> dict[str, dict[str, Any]]:
    """Settings of adapters whose experts were linear layers of their own, as transformers 4 built them."""
    if name not in LEGACY:
        return {}
    parts = LEGACY[name]
    every = [*FAMILIES[name].linear, *parts]
    return {
        "each expert": {"target_modules": every},
        "each expert and router": {"target_modules": [*every, "gate"]},
        "each expert, down alone": {"target_modules": [*FAMILIES[name].linear, parts[2]]},
        "each expert, with patterns": {"target_modules": every, "rank_pattern": {"o_proj": 2}, "alpha_pattern": {r".*\.o_proj": 9}},
    }


LEGACY = dict.fromkeys(("qwen3-moe", "qwen2-moe", "olmoe", "deepseek-v3"), ("gate_proj", "up_proj", "down_proj"))
LEGACY["mixtral"] = ("w1", "w3", "w2")
"""Families of which each expert had linear layers of its own → their names: of the gate, of its other half, of the output."""


def legacy(base: Path, folder: Path, *, target_modules: list[str], r: int = 4, **options: Any) -> Path:
    """An adapter over a base in the form "safetensors", as PEFT saved it when each expert was a module by itself."""
    import torch
    from safetensors.torch import load_file, save_file

    generator, table = torch.Generator().manual_seed(5), {}
    ranks = options.get("rank_pattern", {})
    for tensor, weight in load_file(base / "model.safetensors").items():
        module = tensor.removesuffix(".weight")
        last = module.rpartition(".")[2]
        if last in target_modules and weight.ndim == 2:
            rank = ranks.get(last, r)
            for factor, shape in (("A", (rank, weight.shape[1])), ("B", (weight.shape[0], rank))):
                table[f"base_model.model.{module}.lora_{factor}.weight"] = 0.2 * torch.randn(shape, generator=generator)
    folder.mkdir(parents=True)
    save_file(table, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": r, "lora_alpha": 6, "target_modules": target_modules, **options}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
