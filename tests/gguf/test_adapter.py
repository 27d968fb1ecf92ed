"""An adapter as a GGUF file does over its base what PEFT's does, with every factor; what llama.cpp can't add is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from handlers.validate.workers import decoding
from tests.gguf import forms, kinds
from tests.merge import helpers
from tests.stages import refused

if TYPE_CHECKING:
    from handlers.gguf.engine import GgufAdapterEngine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]


def adapted(base: Path, folder: Path, **options: Any) -> Path:
    """A checkpoint's adapter over a base, with random factors."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(5)
    given = {"r": 4, "lora_alpha": 6, "target_modules": LINEAR, "init_lora_weights": False, "task_type": "CAUSAL_LM", **options}
    config = LoraConfig(**given)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config).save_pretrained(folder)
    return folder


def written(base: Path, adapter: Path, work: Path) -> Path:
    """The folder that the stage makes."""
    from handlers.gguf.adapter import stage as adapter_stage

    context = helpers.context(work, adapter, base)
    context = context.model_copy(update={"stage": "gguf-adapter", "inputs": {"pytorch-adapter": str(adapter)}})
    output = adapter_stage.run(context, helpers.reporter())
    assert output.figures["file"] == "adapter.gguf"
    return work / "staging"


def over(folder: Path, base: Path) -> GgufAdapterEngine:
    """The adapter over a base, opened as the check does."""
    from handlers.gguf.engine import GgufAdapterEngine
    from handlers.validate.engines.registry import EngineSpec

    return GgufAdapterEngine(EngineSpec(engine="gguf-adapter", folder=str(folder), base=str(base), threads=2))


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("Llama", {}),
    "rsLoRA": ("Qwen3", {"use_rslora": True}),
    "patterns": ("Llama", {"rank_pattern": {"q_proj": 8, "layers.1.mlp.down_proj": 2}, "alpha_pattern": {"k_proj": 40, "o_proj": 1}}),
    "rsLoRA with patterns": ("Qwen2", {"use_rslora": True, "rank_pattern": {"v_proj": 7}, "alpha_pattern": {"q_proj": 3}}),
    "Conv1D": ("GPT-2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "head": ("Llama", {"target_modules": [*LINEAR, "lm_head"]}),
    "fused": ("Phi 3", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_over_its_base_it_says_what_peft_says(case: str, tmp_path: Path) -> None:  # R2.1
    import numpy as np
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    kind, options = CASES[case]
    base = kinds.make(kind, tmp_path / "base")
    adapter = adapted(base, tmp_path / "adapter", **options)
    folder = written(base, adapter, tmp_path / "work")
    engine = over(folder, base)
    ids = list(range(10, 70))
    found = decoding.teacher_forced(engine, ids)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.inference_mode():
        without = plain(torch.tensor([ids])).logits[0].numpy()
        wanted = PeftModel.from_pretrained(plain, adapter)(torch.tensor([ids])).logits[0].numpy()
    scale = float(wanted.std())
    assert np.abs(wanted - without).max() > 0.5 * scale, "the adapter does something"
    assert np.abs(found - wanted).max() < (2e-2 if kind == "GPT-2" else 1e-3) * scale
    assert {path.name for path in folder.iterdir()} == {"adapter.gguf", "Modelfile"}


def test_an_alpha_of_zero_does_nothing_for_llama_cpp_either(tmp_path: Path) -> None:
    base = kinds.make("Llama", tmp_path / "base")
    folder = written(base, adapted(base, tmp_path / "adapter", lora_alpha=0), tmp_path / "work")
    engine = over(folder, base)
    plain = forms.engine(forms.exact(base, tmp_path / "plain"))
    ids = list(range(10, 40))
    assert abs(decoding.teacher_forced(engine, ids) - decoding.teacher_forced(plain, ids)).max() < 1e-4


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "does not know DoRA": ("Llama", {"use_dora": True}),
    "is more than a product of two factors": ("Llama", {"bias": "lora_only", "lora_bias": True}),
    "the adapter also brings": ("Llama", {"modules_to_save": ["lm_head"]}),
    "what it does to model.embed_tokens is more than": ("Llama", {"target_modules": ["embed_tokens"]}),
    "also brings lm_head.weight": ("Qwen2", {"target_modules": ["lm_head"]}),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_llama_cpp_can_not_add_is_refused(said: str, tmp_path: Path) -> None:
    kind, options = REFUSED[said]
    base = kinds.make(kind, tmp_path / "base")
    fault = refused(said, written, base, adapted(base, tmp_path / "adapter", **options), tmp_path / "work")
    assert "leave gguf-adapter out" in fault.remedy


def test_an_adapter_of_another_base_is_refused_by_llama_cpp(tmp_path: Path) -> None:
    from handlers.gguf.llama import library

    base, other = kinds.make("Llama", tmp_path / "base"), kinds.make("Llama", tmp_path / "other", hidden_size=128)
    folder = written(base, adapted(base, tmp_path / "adapter"), tmp_path / "work")
    with pytest.raises(library.Refused):
        over(folder, other)
    assert forms.keys(folder / "adapter.gguf")["general.type"] == "adapter"
