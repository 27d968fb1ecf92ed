"""Which base tensor each LoRA pair changes, and whether the merge can stream at all.

Called by `handlers.merge.api`. Every key of the adapter ends in the plan or in an error; what streaming does not know
raises `NeedsPeft` with the reason in words. Only headers are looked at; when names don't fit, the model's
structure is built without weights to tell a renamed module from a wrong base.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.errors import Permanent
from handlers.merge.adapter import Adapter, rank_of, scale_of, targeted
from handlers.model_files import TensorInfo, setting

OPERATION = "merge the adapter"
_PAIR = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")
STREAMED_DTYPES = ("F32", "F16", "BF16")
CONV1D_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Model types whose layers are Conv1D: weights lie as (in, out)."""
PLAIN_INITIALIZERS = (None, True, False, "gaussian")
"""Values of init_lora_weights that leave the base as it is, so that reloading needs no initializer."""
OTHER_WAYS: dict[str, str] = {
    "use_dora": "DoRA rescales whole weights",
    "modules_to_save": "modules_to_save replaces whole modules",
    "lora_bias": "lora_bias changes biases too",
    "trainable_token_indices": "trainable_token_indices replaces embedding rows",
    "target_parameters": "target_parameters changes fused parameters",
}
NEUTRAL = frozenset({
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "r",
    "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config",
    "bias", "init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
})  # fmt: skip
"""Keys of adapter_config.json that streaming understands or that do not change the merge."""


class NeedsPeft(Exception):
    """The adapter can't be streamed; the message is the reason, as a clause."""


@dataclass(frozen=True)
class Delta:
    """One LoRA pair and the base tensor that it changes: W + scale · B·A, transposed for Conv1D."""

    module: str
    tensor: str
    info: TensorInfo
    a: str
    b: str
    rank: int
    scale: float
    transposed: bool


def check_configuration(adapter: Adapter) -> None:
    """Raise NeedsPeft when adapter_config.json asks for more than plain LoRA on linear layers."""
    config = adapter.config
    if adapter.method != "LORA":
        raise NeedsPeft(f"the method is {adapter.method}, not LoRA")
    for key, reason in OTHER_WAYS.items():
        if config.get(key):
            raise NeedsPeft(reason)
    if config.get("bias") not in (None, "none"):
        raise NeedsPeft(f"bias={config['bias']} replaces biases")
    if config.get("init_lora_weights") not in PLAIN_INITIALIZERS:
        raise NeedsPeft(f"the initializer {config['init_lora_weights']} changes the base before the adapter is added")
    unknown = sorted(key for key, value in config.items() if value and key not in NEUTRAL and key not in OTHER_WAYS)
    if unknown:
        raise NeedsPeft(f"adapter_config.json sets {', '.join(unknown)}")


def _pairs(adapter: Adapter) -> dict[str, dict[str, str]]:
    """Module path → its keys by side. NeedsPeft for a key of another form; Permanent for half a pair."""
    found: dict[str, dict[str, str]] = {}
    for key in sorted(adapter.shapes):
        match = _PAIR.match(key)
        if match is None:
            raise NeedsPeft(f"the adapter's key {key} is not that of a linear LoRA layer")
        found.setdefault(match["module"], {})[match["side"]] = key
    for module, sides in found.items():
        if len(sides) == 1:
            raise Permanent(
                "half-a-pair",
                OPERATION,
                f"{module} has lora_{next(iter(sides))} but not its counterpart",
                "take another checkpoint; this one was saved while parameters were sharded or was cut",
                path=adapter.file,
            )
    return found


def _tensor_names(modules: Collection[str], base: dict[str, TensorInfo]) -> dict[str, str]:
    """Module path → base tensor, as it stands or without the model's prefix (a base saved from the headless class)."""
    exact = {module: f"{module}.weight" for module in modules}
    if not any(name in base for name in exact.values()):
        bare = {module: f"{module.partition('.')[2]}.weight" for module in modules}
        if all(name in base for name in bare.values()):
            return bare
    return exact


def _unmatched(adapter: Adapter, folder: Path, missing: list[str], base: dict[str, TensorInfo]) -> None:
    """Raise Permanent when the model has no such module, else NeedsPeft: its weights lie under other names."""
    from handlers.merge.structure import module_names

    names = module_names(folder)
    if names is not None and all(module in names for module in missing):
        raise NeedsPeft(f"the base stores the weights of {missing[0]} under another name")
    raise nothing_matches(adapter, missing, names or {name.removesuffix(".weight") for name in base})


def nothing_matches(adapter: Adapter, missing: list[str], names: Collection[str]) -> Permanent:
    """The error for adapter modules that the base does not have, with the three nearest names that it has."""
    module = next((name for name in missing if name not in names), missing[0])
    nearest = difflib.get_close_matches(module, sorted(names), n=3, cutoff=0.0)
    count = f"{len(missing)} modules of the adapter match" if len(missing) > 1 else "one module of the adapter matches"
    return Permanent(
        "adapter-key-unmatched",
        OPERATION,
        f"{count} nothing in the base, for example {module}; the nearest names there are {', '.join(nearest)}",
        f"check that the base is the one the adapter was trained on, which it names {adapter.base_name}",
        path=adapter.folder,
    )


def _check_ranks(adapter: Adapter, module: str, a: tuple[int, ...], b: tuple[int, ...]) -> int:
    rank = rank_of(adapter.config, module)
    if len(a) != 2 or len(b) != 2 or 0 in a + b:
        raise Permanent(
            "adapter-sharded",
            OPERATION,
            f"lora_A and lora_B of {module} have the shapes {list(a)} and {list(b)}",
            "save the adapter with its parameters gathered (DeepSpeed ZeRO-3 and FSDP keep shards)",
            path=adapter.file,
        )
    if a[0] != rank or b[1] != rank:
        raise Permanent(
            "rank-mismatch",
            OPERATION,
            f"{module} has rank {a[0]} (lora_A) and {b[1]} (lora_B) in the weights, but {rank} by adapter_config.json",
            "use weights and adapter_config.json of one and the same save",
            path=adapter.folder,
        )
    return rank


def _orientation(adapter: Adapter, module: str, info: TensorInfo, a: tuple[int, ...], b: tuple[int, ...]) -> bool | None:
    """True for a weight stored as (in, out), False for (out, in), None for a square one; Permanent when neither fits."""
    straight, turned = (b[0], a[1]), (a[1], b[0])
    if info.shape not in (straight, turned):
        raise Permanent(
            "adapter-for-another-base",
            OPERATION,
            f"{module} is {' × '.join(map(str, info.shape))} in the base, but the adapter's delta is {b[0]} × {a[1]}; "
            "most likely the adapter was trained on a base of another size",
            f"set the base to the one the adapter was trained on, which it names {adapter.base_name}",
            path=adapter.folder,
        )
    return None if straight == turned else info.shape == turned


def _square_orientation(adapter: Adapter, config: dict[str, Any], others: set[bool]) -> bool:
    """How square weights lie, which their shape can't tell: as the adapter's flag says, if nothing speaks against it."""
    flag = bool(adapter.config.get("fan_in_fan_out"))
    if others - {flag} or (not flag and config.get("model_type") in CONV1D_MODELS):
        raise NeedsPeft("the orientation of square weights can't be told from the adapter's configuration")
    return flag


def _check_untouched(adapter: Adapter, folder: Path, deltas: list[Delta], base: dict[str, TensorInfo]) -> None:
    """Permanent when target_modules names a layer of the base for which the adapter has no weights."""
    config = adapter.config
    if config.get("exclude_modules") or config.get("layers_to_transform") is not None:
        return
    changed = {delta.tensor for delta in deltas}
    prefix = next((d.module[: -len(d.tensor.removesuffix(".weight"))] for d in deltas if d.module != d.tensor.removesuffix(".weight")), "")
    left = [
        prefix + name.removesuffix(".weight")
        for name, info in base.items()
        if name.endswith(".weight") and name not in changed and len(info.shape) == 2
        if targeted(config, prefix + name.removesuffix(".weight"))
    ]
    if not left:
        return
    from handlers.merge.structure import module_names

    # A file may hold layers that the model never builds, or experts that it fuses: only what is a module counts.
    real = sorted(set(left) & (module_names(folder) or set()))
    if real:
        raise Permanent(
            "base-weight-unchanged",
            OPERATION,
            f"target_modules names {len(real)} layers of the base for which the adapter has no weights, for example {real[0]}",
            f"check that the base is the one the adapter was trained on, which it names {adapter.base_name}",
            path=adapter.folder,
        )


def match(adapter: Adapter, folder: Path, base: dict[str, TensorInfo], config: dict[str, Any]) -> list[Delta]:
    """The plan of a streaming merge: one Delta for each LoRA pair, every key of the adapter consumed.

    `base` is what the headers of the model in `folder` say, `config` its config.json. Raises NeedsPeft when streaming does not
    know the case, and Permanent, with the figures, when adapter and base do not belong together.
    """
    check_configuration(adapter)
    pairs = _pairs(adapter)
    names = _tensor_names(pairs.keys(), base)
    heads = [module for module in pairs if module.rpartition(".")[2] in ("lm_head", "embed_out", "embed_tokens", "wte")]
    if heads and setting(config, "tie_word_embeddings") is not False:
        raise NeedsPeft(f"{heads[0]} may share its weight with the embeddings")
    missing = [module for module, name in names.items() if name not in base]
    if missing:
        _unmatched(adapter, folder, missing, base)
    deltas: list[Delta] = []
    turned: dict[str, bool | None] = {}
    for module, name in names.items():
        info, sides = base[name], pairs[module]
        if len(info.shape) != 2 or info.dtype not in STREAMED_DTYPES:
            raise NeedsPeft(f"{name} is stored as {info.dtype} with {len(info.shape)} dimensions")
        a, b = adapter.shapes[sides["A"]], adapter.shapes[sides["B"]]
        rank = _check_ranks(adapter, module, a, b)
        turned[module] = _orientation(adapter, module, info, a, b)
        deltas.append(Delta(module, name, info, sides["A"], sides["B"], rank, scale_of(adapter.config, module), bool(turned[module])))
    if None in turned.values():
        square = _square_orientation(adapter, config, {value for value in turned.values() if value is not None})
        deltas = [
            Delta(**{**vars(delta), "transposed": square}) if turned[delta.module] is None else delta for delta in deltas
        ]  # fmt: skip
    _check_untouched(adapter, folder, deltas, base)
    return deltas
