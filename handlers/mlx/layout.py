"""What an MLX folder holds of a model: names, shapes and bits of its tensors, and config.json, as mlx-lm itself would convert it.

mlx-lm's own class of the model says how weights are named, stacked and turned (`sanitize`), and which of them are packed. All that is
lazy: nothing is read before a tensor is asked for, and a tensor that is stored as the model has it is read a few rows at a time. Called
by the stages and, for the comparison of weights, by the engine. Runs inside the toolchain `mlx`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import utils

from daemon.contract.models.safetensors import TensorInfo
from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.models.folder import ModelFolder
from handlers.models.releases.older_readers import UntranslatableError, translated
from handlers.models.tasks import task_of_config

GROUP = 64
"""Neighbouring weights that share a scale and a bias, as `mlx_lm.convert` has it where nothing else is asked for."""
BLOCK_BYTES = 32 << 20
"""Bytes of weights that are packed or compared at a time."""
_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
_RAW = {1: (np.uint8, mx.uint8), 2: (np.uint16, mx.uint16), 4: (np.uint32, mx.uint32), 8: (np.uint64, mx.uint64)}


def library() -> str:
    """mlx-lm with its version."""
    return f"mlx-lm {importlib.metadata.version('mlx-lm')}"


@dataclass(frozen=True)
class Packing:
    """How many bits a weight has, and how many weights share a scale."""

    bits: int
    group: int = GROUP
    named: bool = False
    """mlx-lm has its own opinion of the layer, which config.json then says."""


@dataclass(frozen=True)
class Part:
    """A tensor of the folder, by the names that safetensors has for dtypes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * _width(self.dtype)


@dataclass
class Planned:
    """A parameter of mlx-lm's model. It is read from the source as it is there, or computed from what is there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path | None
    info: TensorInfo | None
    """Where it lies, if it is there as it is."""
    computed: Any
    """A lazy array otherwise."""
    packing: Packing | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is stored of it."""
        if self.packing is None:
            return (Part(self.name, self.dtype, self.shape),)
        path, *before, last = self.name.removesuffix(".weight"), *self.shape
        groups = (*before, last // self.packing.group)
        return (
            Part(f"{path}.weight", "U32", (*before, last * self.packing.bits // 32)),
            Part(f"{path}.scales", self.dtype, groups),
            Part(f"{path}.biases", self.dtype, groups),
        )

    def blocks(self) -> Iterator[tuple[np.ndarray, ...]]:
        """All of it, in blocks of rows: of each of its parts the same rows, as unsigned numbers."""
        columns = self.shape[-1] if self.shape else 1
        rows = math.prod(self.shape) // max(1, columns)
        step = max(1, BLOCK_BYTES // max(1, columns * _width(self.dtype)))
        whole = None if self.computed is None else self.computed.reshape(rows, columns)
        for start in range(0, rows, step):
            block = self._read(start, min(step, rows - start), columns) if whole is None else whole[start : start + step]
            if self.packing is None:
                yield (np.asarray(block) if self.computed is None else _raw(block),)
                continue
            weights = mx.array(block).view(_DTYPES[self.dtype]) if self.computed is None else block
            yield tuple(_raw(part) for part in mx.quantize(weights, group_size=self.packing.group, bits=self.packing.bits))

    def _read(self, start: int, rows: int, columns: int) -> np.ndarray:
        """Rows of the file; not by a mapping, whose pages would count as this process's memory."""
        assert self.file is not None and self.info is not None
        kind, _ = _RAW[_width(self.dtype)]
        values = np.fromfile(self.file, kind, rows * columns, offset=self.info.start + start * columns * np.dtype(kind).itemsize)
        return values.reshape(rows, columns)


@dataclass
class Layout:
    """A folder of MLX's, before it is written."""

    config: Json
    """config.json."""
    tensors: list[Planned]
    window: int | None = None
    """Tokens that the model's sliding attention sees, where mlx-lm lets it see all of them."""
    kept: list[str] = field(default_factory=list)
    """Layers that are not packed although others of their kind are: their rows do not divide into groups, or mlx-lm wants them exact."""


def of(source: ModelFolder, bits: int | None) -> Layout:
    """The layout of a transformers folder; `bits` None packs nothing. Raises NotPossible."""
    model, config, tensors = _model(source)
    packings = {} if bits is None else _packings(model, bits)
    if bits is not None:
        config = {**config, **_quantization(packings, bits)}
    for planned in tensors:
        if planned.name.endswith(".weight"):
            planned.packing = packings.get(planned.name.removesuffix(".weight"))
    kept = [] if bits is None else [path for path, module in _packable(model) if path not in packings]
    return Layout(dict(sorted(config.items())), tensors, _lost_window(model, config), kept)


def config_of(source: ModelFolder, fields: set[str]) -> Json:
    """config.json with all keys that mlx-lm's class reads, where transformers has defaults for them that may be others than mlx-lm's."""
    config = dict(source.config)
    try:
        from transformers import AutoConfig

        known: Json = AutoConfig.from_pretrained(source.path).to_dict()
    except Exception:  # a type that this transformers does not know; what is missing then, mlx-lm says
        known = {}
    config |= {key: known[key] for key in fields - config.keys() if known.get(key) is not None}
    if "sliding_window_pattern" in fields and (pattern := _pattern(config)):
        config["sliding_window_pattern"] = pattern
    if "n_ctx" in fields and "n_positions" in config:
        config.setdefault("n_ctx", config["n_positions"])
    config.pop("_name_or_path", None)
    try:
        return translated(config)
    except UntranslatableError:
        return config  # there are no older names for it; if mlx-lm does not read it either, the check finds it


def _pattern(config: Json) -> int | None:
    """Each how manieth layer sees everything, by the list of layers. Raises NotPossible where they follow no such rule."""
    kinds = config.get("layer_types")
    if not kinds or "sliding_attention" not in kinds:
        return None
    period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
    if kinds != ["sliding_attention" if (place + 1) % period else "full_attention" for place in range(len(kinds))]:
        raise NotPossible(f"{library()} lets every {period}th layer of a {config['model_type']} model see all tokens, and these are others")
    return period


def _model(source: ModelFolder) -> tuple[Any, Json, list[Planned]]:
    """mlx-lm's model with lazy weights, its configuration, and where its weights are."""
    kind = source.config.get("model_type")
    task = task_of_config(source.config)
    if task is None or task.kind != "causal" or task.media:
        raise NotPossible(f"{library()} runs language models alone, and this one is for {task.name if task else 'another task'}")
    try:
        model_class, arguments = utils._get_classes(config=dict(source.config))
    except ValueError as error:
        raise NotPossible(f"{library()} has no model of the type {kind!r} among its {len(known_types())}") from error
    config = config_of(source, {field.name for field in dataclasses.fields(arguments)})
    try:
        model = model_class(arguments.from_dict(dict(config)))
        weights = _renamed(_loaded(source), config)
        places = {id(array): name for name, array in weights.items()}
        arrays = {**weights}
        cleaned = model.sanitize(arrays) if hasattr(model, "sanitize") else arrays
        model.load_weights(list(cleaned.items()), strict=True)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300].rstrip(".")
        raise NotPossible(f"{library()} builds no {kind} model of it ({said})") from error
    originals = {_stripped(name, config): name for name in source.headers}
    tensors = []
    for name, array in cleaned.items():
        info = source.headers[originals[places[id(array)]]] if id(array) in places else None
        tensors.append(
            Planned(name, _dtype_of(array), tuple(array.shape), source.path_of(info) if info else None, info, None if info else array)
        )
    return model, config, tensors


def known_types() -> list[str]:
    """The model types that mlx-lm has a class for."""
    import pkgutil

    from mlx_lm import models

    names = {module.name for module in pkgutil.iter_modules(models.__path__)}
    return sorted({name for name in names if (Path(models.__path__[0]) / f"{name}.py").read_text("utf-8").count("class ModelArgs")})


def _loaded(source: ModelFolder) -> dict[str, Any]:
    """Lazy arrays of all weights."""
    arrays: dict[str, Any] = {}
    for name in source.files.names:
        arrays |= mx.load(str(source.path / name))
    return arrays


def _stripped(name: str, config: Json) -> str:
    return name.removeprefix("transformer.") if config.get("model_type") == "gpt2" else name


def _renamed(weights: dict[str, Any], config: Json) -> dict[str, Any]:
    """By the names of the hub's files, where transformers writes others; a head that is tied has no weights of its own."""
    named = {_stripped(name, config): array for name, array in weights.items()}
    if config.get("tie_word_embeddings"):
        named.pop("lm_head.weight", None)
    return named


def _packings(model: Any, bits: int) -> dict[str, Packing]:
    """Path of a layer → how it is packed: what `mlx_lm.convert -q` decides."""
    predicate = getattr(model, "quant_predicate", None)
    packings = {}
    for path, module in _packable(model):
        if module.weight.shape[-1] % GROUP:
            continue
        answer = True if predicate is None else predicate(path, module)
        if isinstance(answer, dict):
            packings[path] = Packing(int(answer["bits"]), int(answer["group_size"]), named=True)
        elif answer:
            packings[path] = Packing(bits)
    return packings


def _packable(model: Any) -> list[tuple[str, Any]]:
    """Path and layer of what can be packed."""
    return [(path, module) for path, module in model.named_modules() if hasattr(module, "to_quantized")]


def _quantization(packings: dict[str, Packing], bits: int) -> Json:
    others = {path: {"group_size": packing.group, "bits": packing.bits} for path, packing in packings.items() if packing.named}
    said = {"group_size": GROUP, "bits": bits, "mode": "affine", **others}
    return {"quantization": said, "quantization_config": said}


def _lost_window(model: Any, config: Json) -> int | None:
    from mlx_lm.models.cache import make_prompt_cache

    window = config.get("sliding_window")
    slides = config.get("use_sliding_window", True) and "sliding_attention" in config.get("layer_types", ["sliding_attention"])
    if not isinstance(window, int) or not slides or window >= int(config.get("max_position_embeddings") or 0):
        return None
    return None if any(hasattr(cache, "max_size") for cache in make_prompt_cache(model)) else window


def _dtype_of(array: Any) -> str:
    names = {dtype: name for name, dtype in (*_DTYPES.items(), ("U32", mx.uint32), ("I32", mx.int32), ("U8", mx.uint8), ("I64", mx.int64))}
    if array.dtype not in names:
        raise NotPossible(f"one of its weights is stored as {array.dtype}, which is not a dtype of plain weights")
    return names[array.dtype]


def _width(dtype: str) -> int:
    return {"F32": 4, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "U8": 1, "I64": 8}[dtype]


def _raw(array: Any) -> np.ndarray:
    """The numbers of an array as they are stored."""
    return np.array(array.view(_RAW[array.dtype.size][1]))
