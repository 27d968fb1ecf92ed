"""A quantization_config of compressed-tensors must say what the stored tensors need: each key of it, and no other."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from handlers.models.folder import ModelFolder
from handlers.validate.folders import configs, quantization

TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "observer": None}
LAYERS = ("layers.0.up", "layers.0.down")


def _said(form: str, *groups: dict[str, Any]) -> dict[str, Any]:
    parts = {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"]}
    named = {f"group_{number}": {"output_activations": None, "format": form, **one} for number, one in enumerate(groups)}
    return {**parts, "config_groups": named, "kv_cache_scheme": None, "global_compression_ratio": None}


def _numbers(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": False, "observer": "minmax", **more}


EIGHT = _said(
    "int-quantized", {"targets": ["Linear"], "weights": _numbers(8, "channel"), "input_activations": TOKEN}
)  # fmt: skip
FOUR = _said(
    "pack-quantized",
    {"targets": ["layers.0.down"], "weights": _numbers(4, "group", group_size=64), "input_activations": None},
    {"targets": ["Linear"], "weights": _numbers(4, "group", group_size=32), "input_activations": None},
)
PLAIN = {"lm_head.weight": np.zeros((8, 64), np.float16), "norm.weight": np.zeros(64, np.float16)}


def told(folder: Path, said: dict[str, Any], *, four: bool) -> str | None:
    """What is wrong with it, beside two layers of (16, 64) in the form; nothing is read but the folder's files."""
    tensors = dict(PLAIN)
    for name, groups in zip(LAYERS, (2, 1), strict=True):
        if four:
            tensors[f"{name}.weight_packed"] = np.zeros((16, 8), np.int32)
            tensors[f"{name}.weight_shape"] = np.array([16, 64])
            tensors[f"{name}.weight_scale"] = np.zeros((16, groups), np.float16)
        else:
            tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"] = np.zeros((16, 64), np.int8), np.zeros((16, 1), np.float16)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return quantization.fault({"quantization_config": said}, ModelFolder(folder).headers, folder)


def changed(said: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """With one key set; None of "-" takes it away."""
    made = copy.deepcopy(said)
    *inside, key = path.split(".")
    place = made
    for one in inside:
        place = place[one]
    place[key] = value
    if value == "-":
        del place[key]
    return made


G0, G1 = "config_groups.group_0.", "config_groups.group_1."
BOTH = (
    ("format", "float-quantized"), ("format", "dense"), ("quantization_status", "frozen"), ("quantization_status", "-"),
    ("kv_cache_scheme", TOKEN), ("sparsity_config", {"format": "sparse-24-bitmask"}), ("transform_config", {"config_groups": {"a": {}}}),
    ("global_compression_ratio", 2.0), ("another", 1), ("ignore", ["lm_head", "layers.0.up"]), ("ignore", ["re:.*up"]),
    ("ignore", ["Linear"]), (G0 + "output_activations", TOKEN), (G0 + "format", "dense"), (G0 + "another", 1), (G0 + "targets", []),
    (G0 + "weights.num_bits", 6), (G0 + "weights.num_bits", "-"), (G0 + "weights.type", "float"), (G0 + "weights.symmetric", False),
    (G0 + "weights.strategy", "tensor"), (G0 + "weights.dynamic", True), (G0 + "weights.group_size", 16),
    (G0 + "weights.actorder", "group"), (G0 + "weights.block_structure", [2, 2]), (G0 + "weights.zp_dtype", "torch.int8"),
    (G0 + "weights.another", 1), (G0 + "weights", None),
)  # fmt: skip
EIGHTS = (
    ("format", "pack-quantized"), (G0 + "targets", ["layers.0.up"]), (G0 + "targets", ["Embedding"]), (G0 + "input_activations", None),
    (G0 + "input_activations.dynamic", False), (G0 + "input_activations.dynamic", "local"), (G0 + "input_activations.num_bits", 4),
    (G0 + "input_activations.strategy", "tensor"), (G0 + "input_activations.symmetric", False), (G0 + "input_activations.type", "float"),
    (G0 + "weights.strategy", "group"),
)  # fmt: skip
FOURS = (
    ("format", "int-quantized"), (G0 + "input_activations", TOKEN), (G0 + "weights.group_size", "-"), (G1 + "weights.group_size", 64),
    (G0 + "targets", ["layers.0.up"]), (G0 + "targets", ["layers.0.down", "layers.0.up"]), (G0 + "targets", ["layers.0.down", "norm"]),
    ("config_groups", {}), (G0 + "weights.strategy", "channel"),
)  # fmt: skip
SAME = (
    ("ignore", []), ("version", "0.15"), ("sparsity_config", {}), ("transform_config", None), (G0 + "format", "-"),
    (G0 + "weights.symmetric", "-"), (G0 + "weights.observer", "mse"), (G0 + "weights.actorder", None), ("kv_cache_scheme", "-"),
)  # fmt: skip


@pytest.mark.parametrize(("path", "value"), [*BOTH, *EIGHTS])
def test_a_key_that_is_not_what_int8_needs_is_told(path: str, value: Any, tmp_path: Path) -> None:
    assert told(tmp_path, changed(EIGHT, path, value), four=False) is not None


@pytest.mark.parametrize(("path", "value"), [*BOTH, *FOURS])
def test_a_key_that_is_not_what_packed_numbers_need_is_told(path: str, value: Any, tmp_path: Path) -> None:
    assert told(tmp_path, changed(FOUR, path, value), four=True) is not None


@pytest.mark.parametrize(("said", "four"), [(EIGHT, False), (FOUR, True)])
def test_what_says_the_same_is_not_told(said: dict[str, Any], four: bool, tmp_path: Path) -> None:
    assert told(tmp_path, said, four=four) is None
    for path, value in SAME:
        made = changed(changed(said, path, value), path, value) if value != "-" else changed(said, path, value)
        assert told(tmp_path, made, four=four) is None, path


def test_the_key_and_both_values_are_named(tmp_path: Path) -> None:
    said = told(tmp_path, changed(FOUR, G1 + "weights.group_size", 64), four=True)
    assert said is not None and said.endswith("(quantization_config): group_1.weights.group_size is 64 instead of 32")


def test_weights_in_16_bits_are_not_said_to_be_quantized() -> None:
    said = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    assert "it has no such weights" in (configs.form_fault(said, {}, {"BF16"}) or "")
    assert configs.form_fault(said, {}, {"BF16", "U8"}) is None and configs.form_fault(said, said, {"BF16"}) is None
