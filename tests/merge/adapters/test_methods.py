"""Every method that PEFT knows: it merges as stock PEFT merges it, or is refused with a sentence that says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from tests.merge import helpers, zoo
from tests.merge.experts.test_moe import stock_peft

pytestmark = pytest.mark.filterwarnings("ignore")  # of the methods' own, about what they are and how they are used
SETTINGS: dict[str, dict[str, Any]] = {
    "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 1, "target_modules": "self_attn"},
    "ADALORA": {"init_r": 6, "target_r": 3, "total_step": 10}, "BOFT": {"boft_block_size": 4}, "C3A": {"block_size": 8},
    "CARTRIDGE": {"num_virtual_tokens": 4, "num_frozen_tokens": 1},
    "CPT": {"cpt_token_ids": [1, 2, 3], "cpt_mask": [1, 1, 1], "cpt_tokens_type_mask": [1, 2, 3]}, "FOURIERFT": {"n_frequency": 50},
    "HRA": {"r": 4}, "IA3": {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "LN_TUNING": {"target_modules": ["input_layernorm"]}, "MISS": {"r": 4},
    "MULTITASK_PROMPT_TUNING": {"num_virtual_tokens": 4, "num_tasks": 2}, "OFT": {"oft_block_size": 8, "r": 0},
    "POLY": {"r": 4, "n_tasks": 2, "n_skills": 2, "n_splits": 2}, "PREFIX_TUNING": {"num_virtual_tokens": 4},
    "PROMPT_TUNING": {"num_virtual_tokens": 4}, "PSOFT": {"r": 4}, "P_TUNING": {"num_virtual_tokens": 4, "encoder_hidden_size": 8},
    "ROAD": {"group_size": 8}, "SHIRA": {"r": 2}, "TRAINABLE_TOKENS": {"token_indices": [5, 6], "target_modules": ["embed_tokens"]},
    "VBLORA": {"num_vectors": 16, "vector_length": 8, "topk": 2, "r": 2}, "VERA": {"r": 8}, "WAVEFT": {"n_frequency": 50},
}  # fmt: skip
INPUTS = "changes the inputs, not the weights, so there is nothing to merge"
REFUSED = {
    "ADAMSS": "scikit-learn is required", "ADAPTION_PROMPT": "can't merge ADAPTION_PROMPT", "BEFT": "Base layer has no bias",
    "CARTRIDGE": INPUTS, "CPT": INPUTS, "LILY": "not supported for Lily", "MULTITASK_PROMPT_TUNING": INPUTS, "POLY": "can't merge POLY",
    "PREFIX_TUNING": INPUTS, "PROMPT_TUNING": INPUTS, "P_TUNING": INPUTS, "SHADOW": "not a static weight-space delta", "XLORA": "XLORA",
}  # fmt: skip
"""Method → a part of the sentence. ADAMSS needs a package that is not installed here."""


def kinds() -> list[str]:
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    return sorted(str(getattr(kind, "value", kind)) for kind in PEFT_TYPE_TO_CONFIG_MAPPING)


def adapter_of(kind: str, base: Path, folder: Path, **options: Any) -> Path:
    """An adapter of the method as PEFT saved it, every trained value of which was moved."""
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    cls = next(cls for one, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items() if str(getattr(one, "value", one)) == kind)
    if kind in ("ADAMSS", "XLORA"):  # the first needs a package, the second adapters of its own; neither gets as far as its weights
        folder.mkdir()
        config = {"peft_type": kind, "task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "base_model_name_or_path": str(base)}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        save_file({"base_model.model.model.layers.0.self_attn.q_proj.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
        return folder
    settings = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"], **SETTINGS.get(kind, {}), **options}
    config = cls(**{name: value for name, value in settings.items() if name in cls.__dataclass_fields__})
    torch.manual_seed(3)
    model = peft.get_peft_model(zoo.load("llama", base, "float32"), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_method_that_peft_knows_merges_as_stock_peft_merges_it_or_is_refused_with_the_reason(tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "float32")
    adapters = {kind: adapter_of(kind, base, tmp_path / kind) for kind in kinds()}
    merged = [kind for kind in adapters if kind not in REFUSED]
    stock_peft([
        {"base": str(base), "adapter": str(adapters[kind]), "output": str(tmp_path / "peft" / kind), "dtype": "float32",
         "auto": "AutoModelForCausalLM", "example": "ids"} for kind in merged
    ], tmp_path)  # fmt: skip
    wrong = {}
    plain = zoo.logits("llama", zoo.load("llama", base, "float32"))
    for kind, adapter in adapters.items():
        (tmp_path / "out" / kind).mkdir(parents=True)
        if kind in REFUSED:
            with pytest.raises(Permanent, match=REFUSED[kind]):
                merge_adapter(adapter, base, tmp_path / "out" / kind)
            continue
        merge_adapter(adapter, base, tmp_path / "out" / kind)
        stock = load_file(tmp_path / "peft" / kind / "merged.safetensors")
        live = load_file(tmp_path / "peft" / kind / "logits.safetensors")["live"]
        model = zoo.load("llama", tmp_path / "out" / kind, "float32")
        mine = model.state_dict()
        different = [name for name in stock.keys() | mine.keys() if not torch.equal(stock[name], mine[name])]
        far = (zoo.logits("llama", model) - live).abs().max() / live.std()
        if different or far > 1e-5 or (plain - live).abs().max() < 0.1 * live.std():
            wrong[kind] = (different, float(far))
    assert wrong == {}


@pytest.mark.parametrize("form", ["all logits", "the chosen ones"])
def test_vb_lora_whose_layers_share_one_bank_of_vectors_is_merged(form: str, tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "float32")
    adapter = adapter_of("VBLORA", base, tmp_path / "adapter", save_only_topk_weights=form == "the chosen ones")
    (tmp_path / "out").mkdir()
    assert merge_adapter(adapter, base, tmp_path / "out").strategy == "peft"
    live = zoo.logits("llama", zoo.attached("llama", base, adapter, "float32"))
    assert (zoo.logits("llama", zoo.load("llama", tmp_path / "out", "float32")) - live).abs().max() < 1e-5 * live.std()


def test_vb_lora_without_its_bank_of_vectors_is_refused(tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "float32")
    adapter = adapter_of("VBLORA", base, tmp_path / "adapter")
    helpers.rewrite(adapter / "adapter_model.safetensors", lambda table: [table.pop(name) for name in list(table) if "vector_bank" in name])
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match="vblora_vector_bank"):
        merge_adapter(adapter, base, tmp_path / "out")


def test_a_module_saved_with_tuned_norms_is_merged_too(tmp_path: Path) -> None:
    base = zoo.make("llama", tmp_path / "base", "float32")
    adapter = adapter_of("LN_TUNING", base, tmp_path / "adapter", modules_to_save=["lm_head"])
    (tmp_path / "out").mkdir()
    merge_adapter(adapter, base, tmp_path / "out")
    assert helpers.stored(tmp_path / "out").keys() == helpers.stored(base).keys()
    live = zoo.logits("llama", zoo.attached("llama", base, adapter, "float32"))
    assert (zoo.logits("llama", zoo.load("llama", tmp_path / "out", "float32")) - live).abs().max() < 1e-5 * live.std()
