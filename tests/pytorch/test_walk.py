"""The walk layer by layer gives each linear layer what the whole model gives it, whatever the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.models.folder import ModelFolder
from handlers.pytorch.quantize import walk as walking
from handlers.pytorch.quantize.linears import Linear, find
from handlers.pytorch.quantize.walk import UnknownModelError, Walk
from tests.onnx import qwen
from tests.sampling import some

ROWS = [list(range(2, 40)), list(range(100, 110))]
SLIDING = {"head_dim": 16, "sliding_window": 8}
KINDS: dict[str, dict[str, Any]] = {
    "Qwen3": {}, "Gemma2": SLIDING, "Gemma3Text": SLIDING, "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 64}, "Llama": {}, "Gemma": {},
    "Mistral": {"sliding_window": 8}, "Phi3": {}, "GPTNeoX": {}, "Phi": {}, "Olmo2": {}, "SmolLM3": {}, "Granite": {}, "Cohere": {},
    "StableLm": {}, "Starcoder2": {}, "Bloom": {"n_layer": 2, "n_head": 4},
    "GPTJ": {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    "GptOss": {"num_local_experts": 4, "head_dim": 16},
}  # fmt: skip


def make(folder: Path, kind: str) -> Path:
    """A small model of one architecture, in fp32."""
    import torch
    import transformers

    torch.manual_seed(4)
    config = getattr(transformers, f"{kind}Config")(**{**qwen.PICO, "rope_parameters": None, **KINDS[kind]})
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.save_pretrained(folder)
    return folder


def whole(folder: Path, modules: list[str]) -> dict[str, Any]:
    """Module → xxᵀ over its inputs, in the whole model."""
    import torch
    from transformers import AutoModelForCausalLM

    model, sums = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), dict[str, Any]()

    def hook(name: str) -> Any:
        def see(_: Any, given: tuple[Any, ...]) -> None:
            states = given[0].reshape(-1, given[0].shape[-1])
            sums[name] = sums.get(name, 0) + states.T @ states

        return see

    for name in modules:
        model.get_submodule(name).register_forward_pre_hook(hook(name))
    with torch.inference_mode():
        for row in ROWS:
            model(input_ids=torch.tensor([row]), use_cache=False)
    return sums


@pytest.mark.parametrize("kind", some(list(KINDS), 10))
def test_each_layer_gets_what_it_gets_in_the_whole_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(walking, "SMALL", 1000)  # the embeddings are read by rows
    folder = ModelFolder(make(tmp_path / "model", kind))
    linears, seen = find(folder, "pytorch-w4a16"), dict[str, Any]()

    def look(layer: Linear, weight: torch.Tensor, hessian: torch.Tensor, tokens: int) -> torch.Tensor:
        seen[layer.module] = hessian * tokens
        return weight

    Walk(folder, linears).run(ROWS, look, lambda done, of: None)
    wanted = whole(folder.path, [one.module for one in linears.quantized.values()])
    assert seen.keys() == wanted.keys()
    for name, sums in wanted.items():
        assert float((seen[name] - sums).abs().max() / sums.abs().max()) < 1e-5, name


def test_a_layer_is_run_on_what_the_quantized_layers_before_it_give(tmp_path: Path) -> None:
    import torch

    folder = ModelFolder(qwen.make(tmp_path / "model"))
    linears, seen = find(folder, "pytorch-w4a16"), dict[str, Any]()

    def blank(layer: Linear, weight: torch.Tensor, hessian: torch.Tensor, tokens: int) -> torch.Tensor:
        seen[layer.module] = hessian * tokens
        return torch.zeros_like(weight)

    Walk(folder, linears).run(ROWS, blank, lambda done, of: None)
    sums = whole(folder.path, ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj"])
    first, second = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj")
    assert torch.allclose(seen[first], sums[first], rtol=1e-4) and not torch.allclose(seen[second], sums[second], rtol=0.1)


def test_a_model_of_another_build_is_told_apart(tmp_path: Path) -> None:
    folder = ModelFolder(qwen.make(tmp_path / "moe", "Qwen3Moe"))
    with pytest.raises(UnknownModelError, match=r"experts\.gate_up_proj is stored under another name"):
        Walk(folder, find(folder, "pytorch-w4a16")).run(ROWS, lambda layer, weight, hessian, tokens: weight, lambda done, of: None)
