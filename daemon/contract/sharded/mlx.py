"""mlx-lm's adapters: plain LoRA or DoRA in `adapters.safetensors`, with names, orientation and settings of their own.

The form is mlx-lm's (mlx_lm/lora.py, `train_model`; mlx_lm/tuner/{trainer,utils,lora,dora}.py). A linear layer has `lora_a` (inputs ×
rank), `lora_b` (rank × outputs) and for DoRA `m` (outputs); its weight becomes W + scale · (lora_a · lora_b)ᵀ, with DoRA each row
brought to the length m. `scale` stands in adapter_config.json as it is used, not as α. Each save writes `adapters.safetensors` anew, and
once more as `NNNNNNN_adapters.safetensors` with the iteration; the last one, when training ends, only the former.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from daemon.contract.models.safetensors import TensorInfo, parse_header
from daemon.contract.sharded.pieces import Piece, ShardedTensor, Unsupported, tensor_name
from daemon.contract.values import Json

FILE = "adapters.safetensors"
NUMBERED = re.compile(r"([0-9]{7,12})_adapters\.safetensors")
_ROLES = {"lora_a": "lora_A.weight", "lora_b": "lora_B.weight", "m": "lora_magnitude_vector"}
_EMBEDDING = re.compile(r"(?:.+\.)?(?:embed_tokens|embed_in|wte|tok_embeddings|word_embeddings)")
"""Modules that are embeddings in mlx-lm's models."""


class WrongConfig(ValueError):
    """adapter_config.json is not one of mlx-lm's, or says what can't be."""


def is_config(config: Any) -> bool:
    """Whether an adapter_config.json is mlx-lm's: PEFT's names its method, mlx-lm's the parameters of its layers."""
    return isinstance(config, dict) and "peft_type" not in config and ("lora_parameters" in config or "fine_tune_type" in config)


def step_of(files: Collection[str], iterations: Any, *, ended: bool) -> int | None:
    """The iteration of what `adapters.safetensors` holds: that of the newest numbered file, of all of them if training has `ended`."""
    newest = max((int(match[1]) for name in files if (match := NUMBERED.fullmatch(name))), default=None)
    whole = iterations if type(iterations) is int and 0 < iterations < 10**12 else None
    return max(newest or 0, whole) if whole is not None and (ended or newest is None) else newest


def peft_config(config: Json, names: Collection[str] = ()) -> Json:
    """adapter_config.json as PEFT would write it for the same layers. `names`: PEFT's, of their tensors. WrongConfig for other settings."""
    kind, layers = config.get("fine_tune_type", "lora"), config.get("lora_parameters")
    if kind not in ("lora", "dora") or not isinstance(layers, dict):
        raise WrongConfig(f"fine_tune_type is {kind!r:.40}, and only lora and dora have an adapter")
    rank, scale, base = layers.get("rank"), layers.get("scale"), config.get("model")
    if type(rank) is not int or not 0 < rank < 1 << 31:
        raise WrongConfig(f"lora_parameters.rank is {rank!r:.40}, and it must be a whole number of at least 1")
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not abs(scale) < 1e20:
        raise WrongConfig(f"lora_parameters.scale is {scale!r:.40}, and it must be a finite number")
    modules = {name.removeprefix("base_model.model.").partition(".lora_")[0] for name in names}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base if isinstance(base, str) else None,
        "r": rank,
        "lora_alpha": float(scale) * rank,
        "use_dora": kind == "dora",
        "target_modules": sorted(modules),
        "bias": "none",
        "inference_mode": True,
    }


def read_tensors(folder: Path) -> dict[str, ShardedTensor]:
    """PEFT's name, without its prefix → tensor: the factors as views with rows and columns exchanged.

    Raises Unsupported for what is no LoRA of linear layers or of an embedding; ValueError, OSError.
    """
    tensors = {}
    for name, info in parse_header(folder / FILE).items():
        module, _, role = tensor_name(name).rpartition(".")
        said = _said(module, role, info)
        tensors[said] = _turned(said, info) if role != "m" else _as_it_is(said, info)
    return tensors


def _said(module: str, role: str, info: TensorInfo) -> str:
    if role not in _ROLES or not module:
        raise Unsupported(f"it holds {module}.{role}, which is no part of a LoRA: mlx-lm trained whole layers")
    if len(info.shape) != (1 if role == "m" else 2):
        raise Unsupported(
            f"{module}.{role} has the shape {list(info.shape)}: a LoRA of experts, which lie in mlx-lm's models in another way"
        )
    if _EMBEDDING.fullmatch(module):
        if role == "m":
            raise Unsupported(f"{module} is an embedding with DoRA, which mlx-lm scales row by row and PEFT column by column")
        return f"{module}.lora_embedding_{'A' if role == 'lora_a' else 'B'}"
    return f"{module}.{_ROLES[role]}"


def _turned(name: str, info: TensorInfo) -> ShardedTensor:
    rows, columns = info.shape
    piece = Piece(FILE, info.start, info.size, (0, 0), (columns, rows), strides=(1, columns))
    return ShardedTensor(name, info.dtype, (columns, rows), (piece,))


def _as_it_is(name: str, info: TensorInfo) -> ShardedTensor:
    return ShardedTensor(name, info.dtype, info.shape, (Piece(FILE, info.start, info.size, (0,), info.shape),))
