"""Checkpoints of TensorRT-LLM: every weight comes back to the bit, the model says the same, and what is not mapped is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.folder import ModelFolder
from handlers.tensorrt.llm import mapping, readback
from handlers.validate.engines.registry import EngineSpec
from tests.gguf.kinds import LLAMA3
from tests.onnx import qwen
from tests.pytorch.forms import gpt2
from tests.stages import refused
from tests.tensorrt import forms

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3": ("Qwen3", {}),
    "Qwen3, its head by itself": ("Qwen3", {"tie_word_embeddings": False}),
    "Qwen2": ("Qwen2", {}),
    "Llama": ("Llama", {"tie_word_embeddings": False}),
    "Llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama 3": ("Llama", {"rope_parameters": LLAMA3}),
}


def logits(engine: Any) -> np.ndarray:
    ids = np.arange(5, 45).reshape(2, 20)
    found: np.ndarray = engine.step(ids, np.ones_like(ids), np.tile(np.arange(20), (2, 1)), None)[0]
    return found


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_is_read_back_to_the_bit_and_says_what_the_model_says(name: str, tmp_path: Path) -> None:  # R2.4
    from handlers.tensorrt.llm.engine import TrtLlmEngine
    from handlers.validate.engines.pytorch.torch_causal import TorchEngine

    kind, options = KINDS[name]
    model = qwen.make(tmp_path / "model", kind, **options)
    folder, output = forms.make("tensorrt-llm", model, tmp_path / "work")
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == f"{kind}ForCausalLM" and config["dtype"] == "float32" == output.figures["dtype"]
    assert config["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1} and config["quantization"]["quant_algo"] is None
    tensors = load_file(folder / "rank0.safetensors")
    plain = load_file(model / "model.safetensors")
    prefix = "model.layers.1.self_attn"
    fused = np.concatenate([plain[f"{prefix}.{one}_proj.weight"] for one in "qkv"])
    assert np.array_equal(tensors["transformer.layers.1.attention.qkv.weight"], fused)
    assert np.array_equal(tensors["transformer.layers.0.mlp.fc.weight"], plain["model.layers.0.mlp.gate_proj.weight"])
    assert np.array_equal(tensors["transformer.layers.0.mlp.gate.weight"], plain["model.layers.0.mlp.up_proj.weight"])
    assert np.array_equal(tensors["lm_head.weight"], plain.get("lm_head.weight", plain["model.embed_tokens.weight"]))
    spec = EngineSpec(engine="tensorrt-llm", folder=str(folder), threads=1)
    assert TrtLlmEngine.weights_difference(spec, model) is None
    live = TorchEngine(EngineSpec(engine="torch", folder=str(model), threads=1))
    assert np.array_equal(logits(TrtLlmEngine(spec)), logits(live))


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("Qwen3Moe", {}, "its architecture Qwen3MoeForCausalLM is not mapped"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "is of the kind dynamic"),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "it attends to a sliding window"),
        ("Llama", {"hidden_act": "gelu"}, "its activation is gelu"),
        ("Qwen3", {"attention_bias": True}, "its attention has biases"),
    ],
)
def test_what_is_not_mapped_is_refused_in_one_sentence(kind: str, options: dict[str, Any], says: str, tmp_path: Path) -> None:
    fault = refused(says, forms.make, "tensorrt-llm", qwen.make(tmp_path / "model", kind, **options), tmp_path / "work")
    assert "the variant pytorch" in fault.remedy
    assert not list((tmp_path / "work" / "staging").iterdir())


def test_gpt_2_and_weights_of_several_types_and_a_foreign_tensor_are_refused(tmp_path: Path) -> None:
    refused("GPT2LMHeadModel is not mapped", forms.make, "tensorrt-llm", gpt2(tmp_path / "gpt2"), tmp_path / "first")
    model = qwen.make(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    norm = "model.norm.weight"
    save_file({**tensors, norm: tensors[norm].astype(np.float16)}, model / "model.safetensors", {"format": "pt"})
    refused(r"several types \(float16, float32\)", forms.make, "tensorrt-llm", model, tmp_path / "second")
    save_file({**tensors, "model.layers.0.extra.weight": tensors[norm]}, model / "model.safetensors", {"format": "pt"})
    refused(r"model\.layers\.0\.extra\.weight has no place", forms.make, "tensorrt-llm", model, tmp_path / "third")
    save_file({name: one for name, one in tensors.items() if name != norm}, model / "model.safetensors", {"format": "pt"})
    refused(r"model\.norm\.weight is missing", forms.make, "tensorrt-llm", model, tmp_path / "fourth")


@pytest.mark.parametrize("what", ["a bit", "query and key", "a tensor lost", "another tensor"])
def test_a_written_file_that_differs_is_found(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R4.5
    from handlers.tensorrt.llm import stage

    model = qwen.make(tmp_path / "model")
    folder, _ = forms.make("tensorrt-llm", model, tmp_path / "work")
    path, config = folder / "rank0.safetensors", json.loads((folder / "config.json").read_text())
    tensors = load_file(path)
    fused = "transformer.layers.0.attention.qkv.weight"
    if what == "a bit":
        tensors[fused].view(np.uint8)[-1, -4] ^= 1
    elif what == "query and key":
        tensors[fused][[0, 70]] = tensors[fused][[70, 0]]
    elif what == "a tensor lost":
        del tensors["transformer.layers.1.mlp.gate.weight"]
    else:
        tensors["transformer.layers.2.mlp.gate.weight"] = tensors["transformer.layers.1.mlp.gate.weight"]
    save_file(tensors, path, {"format": "pt"})
    assert readback.difference(path, config, ModelFolder(model))
    plain = stage._write
    monkeypatch.setattr(stage, "_write", lambda target, *given: (plain(target, *given), save_file(tensors, target))[0])
    with pytest.raises(Permanent, match="what was written is not what was merged") as refused:
        forms.make("tensorrt-llm", model, tmp_path / "again")
    assert refused.value.fault.code == FaultCode.MERGE_NOT_EXACT


def test_rows_that_do_not_fit_the_heads_are_refused() -> None:
    with pytest.raises(mapping.Unmapped, match="has 5 rows, where 8 belong"):
        given = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_size": 2}
        mapping.apart("transformer.layers.0.attention.qkv.bias", np.zeros(5), given)
    with pytest.raises(mapping.Unmapped, match="is no tensor of such a checkpoint"):
        mapping.apart("transformer.layers.0.attention.kv_cache_scaling_factor", np.zeros(1), {})
