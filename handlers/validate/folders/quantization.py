"""Whether config.json says of weights of compressed-tensors what the stored tensors need: each key, and no other. No heavy library.

Called where the files of an artifact are compared. transformers on a CPU and vLLM on a GPU read this part of config.json in ways of
their own, so that a key which changes nothing in one of them may decide what the other computes. What a key means, and which tensors a
scheme has, is read by the library's documentation (https://github.com/vllm-project/compressed-tensors: README.md, `QuantizationConfig`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.models.safetensors import TensorInfo
from daemon.contract.values import Json

METHOD, LINEAR = "compressed-tensors", "Linear"
PACKED, INTEGERS = "pack-quantized", "int-quantized"
_SCALE, _WORDS, _SHAPE, _WEIGHT = ".weight_scale", ".weight_packed", ".weight_shape", ".weight"
_MORE = (".weight_zero_point", ".weight_g_idx", ".input_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale")
"""Further tensors of schemes that are not those of these forms: zero points, an order of inputs, fixed scales of activations."""
_OBSERVERS = (None, "minmax", "mse", "memoryless_minmax")
"""What found the ranges of weights; whoever loads them does not ask."""
_NOTHING = object()


@dataclass(frozen=True)
class _Stored:
    """How the matrix of a layer is stored."""

    bits: int
    group: int | None
    """Inputs that have a scale together; None for all of a row."""


def fault(config: Json, tensors: Mapping[str, TensorInfo], folder: Path) -> str | None:
    """Say why a config.json's quantization_config is not what the tensors of its folder need, as a clause; None where it is, or where it is
    of another method. `tensors`: by their names in the loaded model, since targets and `ignore` name its modules: files of models with
    several towers have the names of older releases."""
    said = config.get("quantization_config")
    if not isinstance(said, dict) or said.get("quant_method") != METHOD:
        return None
    layers = {name.removesuffix(_SCALE): info for name, info in tensors.items() if name.endswith(_SCALE)}
    more = next((name for name in tensors if name.endswith(_MORE)), None)
    wrong = f"the folder has {more}, which no scheme of its form has" if more else _fault(said, layers, tensors, folder)
    return None if wrong is None else f"its config.json says otherwise than its weights are stored (quantization_config): {wrong}"


def _fault(said: Json, layers: Mapping[str, TensorInfo], tensors: Mapping[str, TensorInfo], folder: Path) -> str | None:
    stored = {name: _stored(name, scale, tensors, folder) for name, scale in layers.items()}
    form = PACKED if any(f"{name}{_WORDS}" in tensors for name in layers) else INTEGERS
    whole: dict[str, tuple[Any, ...]] = {
        "quant_method": (METHOD,), "format": (form,), "quantization_status": ("compressed",), "kv_cache_scheme": (None,),
        "sparsity_config": (None, {}), "transform_config": (None, {}), "global_compression_ratio": (None,),
    }  # fmt: skip
    if clause := _differing("", {key: value for key, value in said.items() if key not in ("config_groups", "ignore", "version")}, whole):
        return clause
    groups, ignored = said.get("config_groups"), said.get("ignore") or []
    if not isinstance(groups, dict) or not isinstance(ignored, list):
        return "it has no config_groups"
    for name, how in stored.items():
        if how is None:
            return f"{name} is stored in a way that no scheme of its form has"
        if any(_fits(name, pattern) for pattern in ignored):
            return f"ignore names {name}, which is quantized"
        taken = _group_of(name, groups)
        if taken is None:
            return f"no group of config_groups is of {name}"
        if clause := _differing_group(taken, groups[taken], how, form):
            return clause
    empty = next((name for name in groups if not any(_group_of(layer, groups) == name for layer in stored)), None)
    if empty is not None:
        return f"{empty} is of no layer"
    plain = {name.removesuffix(_WEIGHT) for name in tensors if name.endswith(_WEIGHT)} - set(stored)
    targets = [target for group in groups.values() for target in group.get("targets", []) if target != LINEAR]
    lost = next((name for name in sorted(plain) for target in targets if _fits(name, target) and name not in ignored), None)
    return None if lost is None else f"a group is of {lost}, which is not quantized"


def _stored(name: str, scale: TensorInfo, tensors: Mapping[str, TensorInfo], folder: Path) -> _Stored | None:
    """Give how a layer is stored; None where that is no form that is known here."""
    if len(scale.shape) != 2:
        return None
    words, weight = tensors.get(f"{name}{_WORDS}"), tensors.get(f"{name}{_WEIGHT}")
    if words is not None and (shape := tensors.get(f"{name}{_SHAPE}")) is not None and len(words.shape) == 2:
        outputs, inputs = _integers(folder / shape.file, shape)
        fitting = words.shape[0] == outputs == scale.shape[0] and inputs and inputs % scale.shape[1] == 0
        return _Stored(32 * words.shape[1] // inputs, inputs // scale.shape[1]) if fitting else None
    if weight is None or weight.dtype != "I8" or scale.shape != (weight.shape[0], 1):
        return None
    return _Stored(8, None)


def _integers(path: Path, info: TensorInfo) -> tuple[int, int]:
    """Give the two whole numbers of a tensor; (0, 0) where it holds others."""
    kind = {"I64": "<2q", "I32": "<2i"}.get(info.dtype)
    if kind is None or info.size != struct.calcsize(kind):
        return 0, 0
    with path.open("rb") as stream:
        stream.seek(info.start)
        first, second = struct.unpack(kind, stream.read(info.size))
    return first, second


def _fits(name: str, target: Any) -> bool:
    """Tell whether a target names a layer: by its name, by a pattern, or by its class."""
    if not isinstance(target, str):
        return False
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return target in (name, LINEAR)


def _group_of(name: str, groups: Json) -> str | None:
    """Give the group of a layer: one that names it goes before one that names its class."""
    targets = {group: settings.get("targets", []) for group, settings in groups.items() if isinstance(settings, dict)}
    named = [group for group, some in targets.items() if any(_fits(name, target) for target in some if target != LINEAR)]
    return next(iter([*named, *(group for group, some in targets.items() if LINEAR in some)]), None)


def _differing_group(name: str, group: Json, how: _Stored, form: str) -> str | None:
    whole: dict[str, tuple[Any, ...]] = {"format": (None, form), "output_activations": (None,)}
    parts: dict[str, dict[str, tuple[Any, ...]] | None] = {
        "weights": _numbers(how.bits, ("group" if how.group else "channel",), how.group, dynamic=False),
        "input_activations": _numbers(8, ("token",), None, dynamic=True) if form == INTEGERS else None,
    }
    if clause := _differing(f"{name}.", {key: value for key, value in group.items() if key not in ("targets", *parts)}, whole):
        return clause
    for part, wanted in parts.items():
        said = group.get(part)
        if wanted is None or not isinstance(said, dict):
            if said is not None or wanted is not None:
                return f"{name}.{part} is {_value(said)} instead of {'not set' if wanted is None else 'a description of numbers'}"
        elif clause := _differing(f"{name}.{part}.", said, wanted):
            return clause
    return None


def _numbers(bits: int, strategy: tuple[str, ...], group: int | None, *, dynamic: bool) -> dict[str, tuple[Any, ...]]:
    """Give what a description of rounded numbers must say, key by key: the values that mean the same. The last is what silence means."""
    return {
        "num_bits": (bits,), "type": ("int",), "symmetric": (True,), "strategy": strategy, "dynamic": (dynamic,),
        "group_size": (group,), "block_structure": (None,), "actorder": (None,), "observer": _OBSERVERS, "observer_kwargs": ({}, None),
        "scale_dtype": (None,), "zp_dtype": (None,),
    }  # fmt: skip


_MUST = ("quant_method", "format", "quantization_status", "num_bits", "type", "strategy", "dynamic")
"""Keys whose absence is not what is stored; of the others it means None or the usual."""


def _differing(path: str, said: Json, wanted: Mapping[str, tuple[Any, ...]]) -> str | None:
    """Give the first key that is unknown or says something else."""
    for key in (*said, *(key for key in wanted if key not in said)):
        value, allowed = said.get(key, _NOTHING), wanted.get(key)
        if allowed is None:
            return f"{path}{key} is {_value(value)}, which is not known to belong there"
        silent = value is _NOTHING and (key not in _MUST or (key == "format" and path)) and (None in allowed or key == "symmetric")
        if not silent and not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed):
            return f"{path}{key} is {_value(value)} instead of {'not set' if allowed[0] is None else _value(allowed[0])}"
    return None


def _value(value: Any) -> str:
    return "not set" if value is _NOTHING or value is None else repr(value)[:80]
