"""MLX folders of every family: what mlx-lm computes of them, and to the bit what its own converter writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gguf import kinds
from tests.mlx import forms
from tests.onnx.test_encoders import make as make_encoder
from tests.sampling import some
from tests.stages import make, refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
EXACT = {"Gemma": 2e-3}
"""mlx-lm computes GELU exactly where transformers takes Gemma's approximation."""


@pytest.mark.parametrize("name", kinds.KINDS)
def test_mlx_lm_says_what_transformers_says(name: str, tmp_path: Path) -> None:  # R10
    model = kinds.make(name, tmp_path / "model", "bfloat16")
    folder, output = make("mlx", model, tmp_path / "work")
    assert forms.said(folder, model).error < EXACT.get(name, 1e-4)
    assert set(output.figures["weights"]) == {"BF16"} and not output.figures["not_packed"]
    assert bool(output.warnings) == (name == "Gemma 2"), "mlx-lm knows no sliding window for it"


CONVERTED = [(name, bits) for name in ("Qwen3", "Qwen3 MoE", "Llama, biases", "Qwen2", "Gemma 3", "Phi 3") for bits in (None, 8, 4)]


@pytest.mark.parametrize(("name", "bits"), some(CONVERTED, of=9))
def test_a_folder_has_to_the_bit_what_mlx_lms_own_converter_writes(name: str, bits: int | None, tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm.convert import convert

    model = kinds.make(name, tmp_path / "model", "bfloat16")
    folder, _ = make(f"mlx-int{bits}" if bits else "mlx", model, tmp_path / "work")
    for_mlx_lm(model, folder)
    convert(str(model), str(tmp_path / "theirs"), quantize=bits is not None, q_bits=bits, q_group_size=64)
    ours, theirs = (dict(mx.load(str(one / "model.safetensors"))) for one in (folder, tmp_path / "theirs"))
    assert ours.keys() == theirs.keys()
    wrong = [key for key, array in theirs.items() if ours[key].dtype != array.dtype or not mx.array_equal(ours[key], array)]
    assert not wrong
    said, told = (json.loads((one / "config.json").read_bytes()).get("quantization") for one in (folder, tmp_path / "theirs"))
    assert without_mode(said) == without_mode(told)


def for_mlx_lm(model: Path, folder: Path) -> None:
    """Give the source what mlx-lm's converter needs to know of it, which ours finds out."""
    config = json.loads((folder / "config.json").read_bytes())
    own = {key: value for key, value in config.items() if not key.startswith("quantization")}
    (model / "config.json").write_text(json.dumps({**own, "torch_dtype": "bfloat16"}))


def without_mode(quantization: dict[str, Any] | None) -> dict[str, Any] | None:
    return quantization and {key: value for key, value in quantization.items() if key != "mode"}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_packed_weights_lie_near_those_of_the_model(bits: int, dtype: str, tmp_path: Path) -> None:  # read by other code than MLX's
    from safetensors import safe_open

    model = kinds.make("Qwen3", tmp_path / "model", dtype)
    folder, _ = make(f"mlx-int{bits}", model, tmp_path / "work")
    with safe_open(folder / "model.safetensors", "pt") as stored, safe_open(model / "model.safetensors", "pt") as exact:
        for name in ("model.embed_tokens", "model.layers.1.mlp.down_proj"):
            weights = exact.get_tensor(f"{name}.weight").float().numpy()
            numbers = stored.get_tensor(f"{name}.weight").numpy().astype(np.uint32)
            scales, biases = (stored.get_tensor(f"{name}.{part}").float().numpy() for part in ("scales", "biases"))
            shifts = np.arange(0, 32, bits, dtype=np.uint32)
            unpacked = ((numbers[..., None] >> shifts) & (2**bits - 1)).reshape(len(weights), -1, 64)
            groups = weights.reshape(unpacked.shape)
            step = (groups.max(-1) - groups.min(-1)) / (2**bits - 1)
            away = np.abs(unpacked * scales[..., None] + biases[..., None] - groups).max(-1)[step > 0] / step[step > 0]
            # MLX moves its grid so that zero is on it, by up to half a step more, and rounds scales to the weights' dtype.
            assert 0.3 < away.max() < (1.6 if dtype == "bfloat16" and bits == 8 else 1.05)


def test_what_a_configuration_leaves_to_transformers_defaults_is_written_down(tmp_path: Path) -> None:
    """mlx-lm takes a Llama's head for tied, and its base frequency for 10,000, where config.json says nothing."""
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    model = kinds.make("Llama", tmp_path / "model", rope_parameters=rope, tie_word_embeddings=False)
    path = model / "config.json"
    said = json.loads(path.read_bytes())
    path.write_text(json.dumps({key: value for key, value in said.items() if key not in ("tie_word_embeddings", "num_key_value_heads")}))
    refused("builds no llama", make, "mlx", model, tmp_path / "broken")  # transformers' default is another number of heads
    path.write_text(json.dumps({key: value for key, value in said.items() if key != "tie_word_embeddings"}))
    folder, _ = make("mlx", model, tmp_path / "work")
    written = json.loads((folder / "config.json").read_bytes())
    assert written["tie_word_embeddings"] is False and written["rope_theta"] == 500000.0
    assert forms.said(folder, model).error < 1e-4


def test_hub_names_of_gpt2_are_taken_as_well(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = kinds.make("GPT-2", tmp_path / "model")
    plain, _ = make("mlx", model, tmp_path / "plain")
    tensors = {key.removeprefix("transformer."): value for key, value in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    folder, _ = make("mlx", model, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_large_models_are_divided_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.mlx import layout, writing

    model = kinds.make("Qwen3 MoE", tmp_path / "model", "bfloat16")
    whole, _ = make("mlx-int4", model, tmp_path / "whole")
    monkeypatch.setattr(writing, "SHARD_BYTES", 30_000)
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1000)
    folder, _ = make("mlx-int4", model, tmp_path / "work")
    assert len(list(folder.glob("model-0000*-of-0000*.safetensors"))) > 3
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    assert set(index["weight_map"].values()) == {path.name for path in folder.glob("*.safetensors")}
    assert np.array_equal(forms.said(folder, model).found, forms.said(whole, model).found)
    assert forms.difference(folder, model) is None


def classifier(folder: Path) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    torch.manual_seed(0)
    Qwen3ForSequenceClassification(Qwen3Config(**{**kinds.SMALL, "head_dim": 16})).save_pretrained(folder)
    return folder


def opt(folder: Path) -> Path:
    import transformers

    transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=64, hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2, word_embed_proj_dim=32
        )
    ).save_pretrained(folder)
    return folder


OTHER_LAYERS = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
REFUSED: list[tuple[Callable[[Path], Path], str]] = [
    (lambda folder: make_encoder(folder, "Bert", "text-classification"), "runs language models alone, and this one is for text-class"),
    (classifier, "runs language models alone, and this one is for text-classification"),
    (opt, r"has no model of the type 'opt' among its \d\d+"),
    (lambda folder: kinds.make("GPT-2", folder, tie_word_embeddings=False), r"builds no gpt2 model of it \(ValueError: .*lm_head.weight"),
    (lambda folder: kinds.make("Gemma 3", folder, **OTHER_LAYERS), "lets every 2th layer"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_mlx_lm_does_not_run_is_refused_in_one_sentence(make: Any, words: str, tmp_path: Path) -> None:
    model = make(tmp_path / "model")
    refused(words, make, "mlx", model, tmp_path / "work")
    assert not list((tmp_path / "work" / "staging").iterdir()), "nothing is left behind"


def test_a_window_that_mlx_lm_does_not_know_is_told(tmp_path: Path) -> None:
    model = kinds.make("Mistral", tmp_path / "model", sliding_window=32)
    _, output = make("mlx", model, tmp_path / "work")
    assert "has no sliding window for a mistral model" in output.warnings[0] and "trained to see 32" in output.warnings[0]


def test_rows_of_unequal_lengths_say_what_each_says_alone(tmp_path: Path) -> None:
    model = kinds.make("Qwen3", tmp_path / "model")
    folder, _ = make("mlx", model, tmp_path / "work")
    opened = forms.engine(folder)
    ids, mask = np.array([[5, 6, 7, 8], [0, 0, 9, 10]]), np.array([[1, 1, 1, 1], [0, 0, 1, 1]])
    places = np.maximum(mask.cumsum(1) - 1, 0)
    both, cache = opened.step(ids, mask, places, None)
    alone, _ = opened.step(np.array([[9, 10]]), np.ones((1, 2), np.int64), np.array([[0, 1]]), None)
    assert np.allclose(both[1, 2:], alone[0], atol=1e-5)
    later, _ = opened.step(np.array([[3], [4]]), np.c_[mask, [1, 1]], np.array([[4], [2]]), cache)
    whole, _ = opened.step(np.array([[9, 10, 4]]), np.ones((1, 3), np.int64), np.arange(3)[None], None)
    assert np.allclose(later[1, 0], whole[0, 2], atol=1e-5)
