"""The weights of the smaller PyTorch forms are those of the merge, as far as rounding allows: sound ones pass, damaged ones are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from handlers.pytorch.weights.difference import difference
from handlers.validate.folders import configs
from tests.onnx import qwen
from tests.pytorch import forms
from tests.sampling import some

SIXTEEN = ("pytorch-fp16", "pytorch-bf16")
ROUNDED = ("pytorch-bnb-int8", "pytorch-bnb-nf4", "pytorch-w8a8", "pytorch-w4a16")
Tensors = dict[str, torch.Tensor]
WEIGHT = "model.layers.1.mlp.up_proj"
OTHER = "model.layers.0.mlp.up_proj"
NORM = "model.layers.1.input_layernorm.weight"
PACKED = {"pytorch-w4a16": "weight_packed"}
SCALE = {"pytorch-bnb-int8": "SCB", "pytorch-bnb-nf4": "weight.absmax", "pytorch-w8a8": "weight_scale", "pytorch-w4a16": "weight_scale"}


def _odd_rows(folder: Path) -> Path:
    """Rows of zeros, rows of one value, tiny and large rows, and one weight that exceeds all others of its row."""
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        if tensor.dim() == 2 and len(tensor) >= 8:
            tensor[0], tensor[1], tensor[2, 0] = 0, 0.25, 30
            tensor[3] *= 1e-4
            tensor[4, ::2] = 0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


MODELS: dict[str, Callable[[Path], Path]] = {
    "untied": lambda folder: qwen.make(folder, tie_word_embeddings=False),
    "tied": lambda folder: qwen.make(folder, tie_word_embeddings=True),
    "odd rows": lambda folder: _odd_rows(qwen.make(folder, tie_word_embeddings=False)),
    "odd sizes": lambda folder: qwen.make(folder, hidden_size=80, intermediate_size=112),
    "biases": lambda folder: qwen.make(folder, "Qwen2"),
    "Conv1D": forms.gpt2,
}
NOT_FOR = {("Conv1D", "pytorch-w8a8"), ("Conv1D", "pytorch-w4a16")}
SOUND = [(name, variant) for name in MODELS for variant in (*SIXTEEN, *ROUNDED) if (name, variant) not in NOT_FOR]


@pytest.mark.parametrize(("name", "variant"), some(SOUND, of=3))
def test_a_sound_form_of_any_model_has_the_merges_weights(name: str, variant: str, tmp_path: Path) -> None:
    source = MODELS[name](tmp_path / "source")
    folder, _ = forms.make(variant, source, tmp_path / "work", error_correction=False)
    assert difference(folder, source) is None
    assert configs.difference(folder, source) is None


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The folder of a form, and the model that it was made of."""
    root, made = tmp_path_factory.mktemp("weights"), dict[str, Path]()
    source = qwen.make(root / "source", tie_word_embeddings=False)

    def of(variant: str) -> tuple[Path, Path]:
        if variant not in made:
            made[variant], _ = forms.make(variant, source, root / variant, error_correction=False)
        return made[variant], source

    return of


def _flip(tensors: Tensors, name: str) -> None:
    raw = tensors[name].contiguous().view(torch.uint8).reshape(-1)
    raw[raw.numel() // 2] ^= 0x5B


def _noise(tensors: Tensors, name: str) -> None:
    raw = tensors[name].contiguous().view(torch.uint8).reshape(len(tensors[name]), -1)
    raw[3] = torch.randint(256, raw[3].shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def _swap(tensors: Tensors) -> None:
    mine = {name: tensors[name] for name in tensors if name.startswith(WEIGHT)}
    theirs = {name: tensors[name.replace("layers.1", "layers.0")] for name in mine}
    tensors |= theirs | {name.replace("layers.1", "layers.0"): tensor for name, tensor in mine.items()}


def _drop(tensors: Tensors) -> None:
    tensors.pop(NORM)


def _add(tensors: Tensors) -> None:
    tensors["model.layers.2.input_layernorm.weight"] = tensors[NORM].clone()


def _zero_norm(tensors: Tensors) -> None:
    tensors[NORM] = torch.zeros_like(tensors[NORM])


def _retyped(tensors: Tensors) -> None:
    tensors[NORM] = tensors[NORM].to(torch.float32)


def _reshaped(tensors: Tensors) -> None:
    tensors[NORM] = tensors[NORM][:-1].clone()


DAMAGES: dict[str, tuple[Callable[[str, Tensors], object], str]] = {
    "one number": (lambda variant, tensors: _flip(tensors, f"{WEIGHT}.{PACKED.get(variant, 'weight')}"), f"{WEIGHT}.weight is not that"),
    "a group": (lambda variant, tensors: _noise(tensors, f"{WEIGHT}.{PACKED.get(variant, 'weight')}"), f"{WEIGHT}.weight is not that"),
    "one scale": (lambda variant, tensors: _flip(tensors, f"{WEIGHT}.{SCALE[variant]}"), f"{WEIGHT}.weight is not that"),
    "one value of a norm": (lambda _, tensors: _flip(tensors, NORM), f"{NORM} is not that"),
    "an embedding": (lambda _, tensors: _flip(tensors, "model.embed_tokens.weight"), "model.embed_tokens.weight is not that"),
    "a norm of zeros": (lambda _, tensors: _zero_norm(tensors), f"{NORM} is not that"),
    "swapped layers": (lambda _, tensors: _swap(tensors), f"{WEIGHT}.weight holds {OTHER}.weight"),
    "a tensor missing": (lambda _, tensors: _drop(tensors), f"{NORM} is missing"),
    "a tensor too many": (lambda _, tensors: _add(tensors), "model.layers.2.input_layernorm.weight is there"),
    "another type": (lambda _, tensors: _retyped(tensors), f"{NORM} is torch.float32 instead of"),
    "another shape": (lambda _, tensors: _reshaped(tensors), f"{NORM} has the shape [63] instead of [64]"),
}
BLIND = {("one scale", variant) for variant in SIXTEEN} | {("one number", "pytorch-w4a16")}
"""What can't be: forms without scales; and one number, where the correction of errors may have moved it so far."""
BROKEN = [(damage, variant) for damage in DAMAGES for variant in (*SIXTEEN, *ROUNDED) if (damage, variant) not in BLIND]


@pytest.mark.parametrize(("damage", "variant"), some(BROKEN, of=3))
def test_damage_is_named(damage: str, variant: str, sound: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    made, source = sound(variant)
    folder = tmp_path / "damaged"
    shutil.copytree(made, folder)
    tensors = load_file(folder / "model.safetensors")
    change, words = DAMAGES[damage]
    change(variant, tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    told = difference(folder, source)
    assert told is not None and words in told, told


@pytest.mark.parametrize("variant", ROUNDED)
def test_every_weight_counts_wherever_it_lies(variant: str, sound: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    """In each matrix a number that is far from what rounding gives it is found; where errors are corrected, a row of such numbers."""
    made, source = sound(variant)
    folder = tmp_path / "damaged"
    shutil.copytree(made, folder)
    tensors = load_file(made / "model.safetensors")
    chance = torch.Generator().manual_seed(5)
    packed = [name for name in tensors if name.endswith(f"proj.{PACKED.get(variant, 'weight')}")]
    assert len(packed) == 14
    for name in packed:
        changed = {key: tensor.clone() for key, tensor in tensors.items()}
        raw = changed[name].view(torch.uint8)
        raw = raw if variant == "pytorch-w4a16" else raw.reshape(-1)
        place = int(torch.randint(len(raw), (1,), generator=chance))
        raw[place] += 0x88  # both numbers of four bits are eight away
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        told = difference(folder, source)
        assert told is not None and name.rpartition(".")[0] in told, (name, place, told)


def test_a_setting_that_decides_what_is_computed_is_named(sound: Callable[[str], tuple[Path, Path]], tmp_path: Path) -> None:
    made, source = sound("pytorch-w8a8")
    folder = tmp_path / "damaged"
    shutil.copytree(made, folder)
    config = json.loads((made / "config.json").read_text())
    changes: list[tuple[dict[str, Any], str]] = [
        ({"rms_norm_eps": 1e-3}, "rms_norm_eps is 0.001 instead of 1e-06"),
        ({"rope_parameters": {**config["rope_parameters"], "rope_theta": 5.0}}, "rope_parameters.rope_theta is 5.0 instead of 1000000.0"),
        ({"num_attention_heads": 2}, "num_attention_heads is 2 instead of 4"),
        ({"new": 1}, "new is 1 instead of not set"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None instead of 1e-06"),
    ]
    for change, words in changes:
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        assert words in (configs.difference(folder, source) or ""), change
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "float16", "torch_dtype": "float16"}))
    assert configs.difference(folder, source) is None
