"""A GGUF file computes what transformers computes, whatever the architecture; what would not is refused in a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.validate.workers import decoding
from tests.gguf import forms, kinds
from tests.stages import refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
TABLED = ("Gemma", "Gemma 2", "Gemma 3", "Phi", "GPT-2")
"""Models whose activation llama.cpp reads from a table in half precision."""


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_architecture_says_what_transformers_says_with_a_cache_and_in_batches(kind: str, tmp_path: Path) -> None:  # R4.1
    model = kinds.make(kind, tmp_path / "model")
    folder = forms.exact(model, tmp_path / "work")
    assert forms.said(folder, model).error < (1e-2 if kind in TABLED else 1e-4)
    engine = forms.engine(folder)
    prompt = list(range(10, 60))
    decoded = decoding.greedy(engine, prompt, 12)
    limit = 5e-2 if kind in TABLED else 1e-3
    assert max(decoding.cache_errors(engine, prompt, decoded, 12)) < limit
    assert decoding.padding_error(engine, [prompt, prompt[:7]], [[5, 6, 7], [8, 9, 10]]) < limit


def test_the_declaration_names_the_types_that_are_written() -> None:
    from handlers.gguf.file.architectures import ARCHITECTURES
    from handlers.gguf.format import TYPES

    assert ARCHITECTURES.keys() == TYPES


def test_a_cache_that_is_full_goes_on_in_a_wider_one(tmp_path: Path) -> None:
    model = kinds.make("Llama", tmp_path / "model", max_position_embeddings=1024)
    engine = forms.engine(forms.exact(model, tmp_path / "work"))
    tokens = [4 + at % 300 for at in range(700)]
    batch = decoding.Batch(engine, [tokens[:8], tokens[3:8]])
    stepped = np.stack([batch.advance([[token], [token]])[0, 0] for token in tokens[8:]])
    assert np.abs(stepped - decoding.teacher_forced(engine, tokens)[8:]).max() < 1e-3


def test_one_thread_computes_what_is_little_and_several_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.gguf.llama import library

    (path,) = forms.exact(kinds.make("Llama", tmp_path / "model"), tmp_path / "work").glob("*.gguf")
    said, threads = list[np.ndarray](), list[int]()
    for most in (library.ALONE_BYTES, 0):
        monkeypatch.setattr(library, "ALONE_BYTES", most)
        context = library.Context(library.Model(path), 256, 1, 2)
        said.append(context.run([(token, place, 0) for place, token in enumerate(range(5, 25))]))
        threads.append(library.llama().llama_n_threads_batch(context.handle))
        context.close()
    assert threads == [1, 2] and np.abs(said[0] - said[1]).max() < 1e-5


def test_weights_in_bf16_are_written_without_loss(tmp_path: Path) -> None:
    import gguf
    from safetensors.torch import load_file

    model = kinds.make("Qwen3", tmp_path / "model", dtype="bfloat16")
    folder, output = forms.make("gguf-bf16", model, tmp_path / "work")
    (path,) = folder.glob("*.gguf")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    source = load_file(model / "model.safetensors")["model.layers.1.mlp.down_proj.weight"].float().numpy()
    tensor = stored["blk.1.ffn_down.weight"]
    assert tensor.tensor_type.name == "BF16"
    assert np.array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), source)
    assert set(output.figures["weights"]) == {"BF16", "F32"}


def test_a_folder_whose_name_is_not_utf_8_is_no_obstacle(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    odd.mkdir()
    folder, _ = forms.make("gguf-q4_k_m", kinds.make("Llama", tmp_path / "model"), odd)
    assert forms.engine(folder).encode("def")


def test_q8_0_is_that_of_llama_cpp(tmp_path: Path) -> None:
    import gguf

    from handlers.gguf.llama import library

    model = kinds.make("Llama", tmp_path / "model")
    ours = next(forms.make("gguf-q8_0", model, tmp_path / "work")[0].glob("*.gguf"))
    plain, theirs = next(forms.exact(model, tmp_path / "exact").glob("*.gguf")), tmp_path / "theirs.gguf"
    library.quantize(plain, theirs, "Q8_0", 1, {})
    read = [{tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors} for path in (ours, theirs)]
    assert read[0].keys() == read[1].keys()
    assert all(read[0][name].tensor_type == read[1][name].tensor_type for name in read[0])
    assert all(np.array_equal(read[0][name].data, read[1][name].data) for name in read[0])


@pytest.mark.parametrize("kind", ["Qwen3", "Qwen3 MoE"])
def test_the_importance_of_columns_is_the_mean_square_of_what_they_are_multiplied_with(kind: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from handlers.gguf.llama import importance

    model = kinds.make(kind, tmp_path / "model")
    (path,) = forms.exact(model, tmp_path / "work").glob("*.gguf")
    rows = [list(range(5, 60)), list(range(200, 230))]
    found = importance.measure(path, rows, 2, lambda _: None)
    live, seen = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), list[torch.Tensor]()

    def looked(_module: object, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0].reshape(-1, inputs[0].shape[-1]))

    live.model.layers[1].self_attn.o_proj.register_forward_pre_hook(looked)
    with torch.inference_mode():
        for row in rows:
            live(torch.tensor([row]))
    wanted = (torch.cat(seen).double() ** 2).mean(0).numpy()
    assert np.allclose(found["blk.1.attn_output.weight"], wanted, rtol=1e-3, atol=1e-6)
    assert not any(name.startswith("token_embd") for name in found)
    if kind == "Qwen3 MoE":
        assert found["blk.0.ffn_gate_exps.weight"].shape == (4 * 64,) and found["blk.0.ffn_down_exps.weight"].shape == (4 * 64,)
        assert len({tuple(part) for part in found["blk.0.ffn_down_exps.weight"].reshape(4, 64)}) == 4, "each expert has its own"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a mixture that is normed otherwise": ("Qwen2 MoE", {"norm_topk_prob": True}, "never normalizes the weights of a qwen2_moe"),
    "layers without experts": ("Qwen3 MoE", {"mlp_only_layers": [0]}, "some of its layers have no experts"),
    "another pattern of windows": ("Gemma 3", {"layer_types": ["full_attention"] * 7}, "its layers do not alternate"),
    "another scale of attention": ("Gemma 2", {"query_pre_attn_scalar": 99}, "scaled by another number"),
    "another scale of GPT-2's attention": ("GPT-2", {"scale_attn_by_inverse_layer_idx": True}, "scaled in another way"),
    "another activation": ("Llama", {"hidden_act": "relu"}, "its activation is relu, and llama.cpp's silu"),
    "another scaling of positions": (
        "Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "scaled by 'dynamic'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_computes_otherwise_is_refused(case: str, tmp_path: Path) -> None:
    kind, changes, said = REFUSED[case]
    model = kinds.make(kind, tmp_path / "model", **changes)
    fault = refused(said, forms.make, "gguf-f16", model, tmp_path / "work")
    assert "leave gguf-f16 out" in fault.remedy
    assert not list((tmp_path / "work" / "staging").glob("*.gguf"))


def test_another_kind_of_model_is_refused_with_those_that_can_be_written(tmp_path: Path) -> None:
    model = kinds.make("Llama", tmp_path / "model")
    config = json.loads((model / "config.json").read_bytes())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    refused(r"models of the type bert are not written as GGUF; gemma, gemma2, .* are", forms.make, "gguf-f16", model, tmp_path / "work")


def test_a_sliding_window_that_llama_cpp_does_not_know_bounds_the_length(tmp_path: Path) -> None:
    model = kinds.make("Mistral", tmp_path / "model", sliding_window=128)
    folder, output = forms.make("gguf-bf16", model, tmp_path / "work")
    (path,) = folder.glob("*.gguf")
    assert forms.keys(path)["llama.context_length"] == 128
    assert any("knows no sliding window" in warning and "128 positions" in warning for warning in output.warnings)
    assert "PARAMETER num_ctx 128" in (folder / "Modelfile").read_text()


def test_a_weight_that_half_precision_can_not_hold_is_named_with_what_can(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = kinds.make("Llama", tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = torch.tensor(1e6)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Permanent, match=r"blk\.0\.ffn_up\.weight has a weight beyond 65,504") as caught:
        forms.make("gguf-f16", model, tmp_path / "work")
    assert "gguf-bf16 or gguf-q8_0" in caught.value.fault.remedy
    forms.make("gguf-bf16", model, tmp_path / "other")


@pytest.mark.parametrize("variant", ["gguf-bf16", "gguf-q8_0", "gguf-q4_k_m"])
def test_a_weight_that_is_no_number_and_one_that_is_missing_are_named(variant: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    model = kinds.make("Llama", tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    save_file({**weights, "model.norm.weight": torch.full((64,), float("nan"))}, model / "model.safetensors", {"format": "pt"})
    refused(r"output_norm\.weight has a weight that is no finite number", forms.make, variant, model, tmp_path / "work")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    refused(r"blk\.1\.ffn_down\.weight", forms.make, variant, model, tmp_path / "other")


def test_a_large_matrix_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.gguf.file import weights

    largest = []
    plain = weights.Weights.rows

    def seen(self: weights.Weights, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        found = plain(self, name, start, stop)
        largest.append(found.nbytes)
        return found

    monkeypatch.setattr(weights, "ROWS_BYTES", 1 << 14)
    monkeypatch.setattr(weights.Weights, "rows", seen)
    model = kinds.make("Qwen3 MoE", tmp_path / "model")
    forms.make("gguf-bf16", model, tmp_path / "work")
    assert max(largest) <= 1 << 15, "an expert, or some rows"
    assert forms.said(tmp_path / "work" / "staging", model).error < 0.1
