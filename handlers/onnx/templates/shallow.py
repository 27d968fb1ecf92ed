"""A small stand-in for a model: the same configuration with a few of its layers, fewer tokens, and weights drawn at random.

It is written as a folder of transformers, so that it is traced, checked and optimized like any other. Since the weights are random, no two
are equal (a graph's tools would store them once), and nothing in the graph can come from the weights of one checkpoint.
"""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from daemon.contract.models.safetensors import DTYPES, TensorInfo
from daemon.contract.values import Json
from handlers.models.files import read_json
from handlers.onnx.templates.layers import Layers
from handlers.onnx.templates.repetition import SHARED, Stack
from handlers.onnx.templates.weights import Weights

TOKENS = 509
"""Size of the vocabulary: a prime, which no other size of a model is."""
_NUMBERED = re.compile(r"((?:[^.]+\.)*?)(\d+)\.")
"""The beginning of a tensor's name: what stands before the layer's number, and the number."""
_ENCODER_KEYS = ("encoder_layers", "num_encoder_layers", "num_layers", "num_hidden_layers")
_DECODER_KEYS = ("decoder_layers", "num_decoder_layers")
"""Of a configuration: the numbers of layers of the halves of an encoder-decoder."""
_VOCABULARY = ("vocab_size", "decoder_vocab_size")
"""Of a configuration: the number of tokens, for the encoder and, where that has a key of its own, for the decoder."""
_OPERATION = "make a template of the graph"


class NoTemplateError(Exception):
    """No template can be made of a model; the message says why."""


class NotTriedError(NoTemplateError):
    """None was made, for a reason that says nothing new of the model."""


class OtherSurroundingsError(NoTemplateError):
    """Outside of its layers the stand-in is not like the model."""


def prefix_of(names: Iterable[str], layers: Layers) -> str:
    """What stands before the number in the names of the tensors of these layers. NoTemplateError where that is not one text."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        if match := _NUMBERED.match(name):
            numbers.setdefault(match[1], set()).add(int(match[2]))
    fitting = [prefix for prefix, used in numbers.items() if used == set(range(layers.depth))]
    if len(fitting) > 1:  # those of an encoder and those of its decoder
        own = f"{layers.name}."
        fitting = [prefix for prefix in fitting if own.endswith(f".{prefix}") or prefix.endswith(f".{own}") or prefix == own]
    if len(fitting) != 1:
        raise NoTemplateError(f"the files do not name the tensors of {layers.depth} layers in one way")
    return fitting[0]


def write(weights: Weights, target: Path, stacks: Sequence[Stack], *, fewer_tokens: bool) -> tuple[Weights, int]:
    """Write the stand-in for the model of `weights` into `target`; gives its weights, and the model's vocabulary if it has a smaller one.

    It has the layers that `stacks` keep, all of them if there are none. NoTemplateError for weights that can't be drawn.
    """
    source = weights.folder
    config: dict[str, Any] = read_json(source / "config.json", _OPERATION)
    text: dict[str, Any] = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    vocabulary = _vocabulary(text) if fewer_tokens else 0
    if len(stacks) == 1:
        _say_all(source, text, len(stacks[0].kinds))
        _cut(config, text, stacks[0])
    elif stacks:
        _cut_both(source, config, stacks)
    if vocabulary:
        text.update({key: TOKENS for key in _VOCABULARY if key in text})
        _replace_tokens(config, text)
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in source.rglob("*.json"):
        if path.parent != source or path.name in ("modules.json", "sentence_bert_config.json"):
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / path.relative_to(source))

    def renamed(name: str) -> str | None:
        for stack in stacks:
            if (number := stack.number(name)) != SHARED:
                return stack.moved(name, stack.kept.index(number)) if number in stack.kept else None
        return name

    def sizes(info: TensorInfo) -> tuple[int, ...]:
        return tuple(TOKENS if vocabulary and size == vocabulary else size for size in info.shape)

    same = {name: group[0] for group in weights.equal for name in group[1:]}
    for folder, infos in weights.folders.items():
        named = {new: info for name, info in infos.items() if (new := renamed(name)) is not None}
        drawn = dict(_drawn(named, sizes, functools.partial(weights.stored, folder)))
        drawn |= {name: drawn[first].clone() for name, first in same.items() if not folder and name in drawn}
        save_file(drawn, target / folder / "model.safetensors", metadata={"format": "pt"})
    return Weights(target), vocabulary


def _vocabulary(text: Json) -> int:
    """The vocabulary's size, if a smaller one can be told from every other size of the model; else 0."""
    size = text.get("vocab_size")
    others = [value for key, value in text.items() if isinstance(value, int) and not isinstance(value, bool) and key not in _VOCABULARY]
    same = all(text.get(key) in (None, size) for key in _VOCABULARY)
    return size if isinstance(size, int) and size > 2 * TOKENS and same and size not in others and TOKENS not in others else 0


def _replace_tokens(config: dict[str, Any], text: dict[str, Any]) -> None:
    """Put others in the places of tokens that are no longer there: some configurations must name one."""

    def other(value: Any) -> Any:
        if isinstance(value, list):
            return [other(item) for item in value]
        return value % TOKENS if isinstance(value, int) and value >= TOKENS else value

    for section in (config, text):
        section.update({key: other(value) for key, value in section.items() if key.endswith("token_id")})


def _say_all(source: Path, text: dict[str, Any], depth: int) -> None:
    """Write into a configuration what transformers reads into it for each layer: it would be something else for fewer layers."""
    loaded = transformers.AutoConfig.from_pretrained(source, local_files_only=True).get_text_config().to_dict()
    for key, value in loaded.items():
        if isinstance(value, list | tuple) and len(value) == depth and text.get(key) is None:
            text[key] = list(value)


def _cut(config: dict[str, Any], text: dict[str, Any], stack: Stack) -> None:
    """Let a configuration be that of a model with the layers that are kept; what is listed for each layer is kept for those."""
    depth = len(stack.kinds)
    loaded: Any = transformers.CONFIG_MAPPING[config["model_type"]]
    name = loaded.attribute_map.get("num_hidden_layers", "num_hidden_layers") if text is config else "num_hidden_layers"
    if text.get(name) != depth:
        raise NoTemplateError(f"the configuration does not say {depth} layers as {name}")
    text[name] = len(stack.kept)
    for key, value in text.items():
        if isinstance(value, list) and len(value) == depth:
            text[key] = [value[layer] for layer in stack.kept]


def _cut_both(source: Path, config: dict[str, Any], stacks: Sequence[Stack]) -> None:
    """The same for an encoder-decoder, whose halves have keys of their own. Whether they were the right ones shows when it is loaded."""
    loaded = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
    settings = loaded.to_dict()
    for stack in stacks:
        depth = len(stack.kinds)
        half = _DECODER_KEYS if "decoder" in stack.prefix else _ENCODER_KEYS
        names = [name for name in half if name not in loaded.attribute_map and settings.get(name) == depth]
        if not names:
            raise NoTemplateError(f"the configuration does not say the {depth} layers of {stack.prefix.rstrip('.')}")
        config.update(dict.fromkeys(names, len(stack.kept)))


def _drawn(
    infos: Mapping[str, TensorInfo], sizes: Callable[[TensorInfo], tuple[int, ...]], stored: Callable[[TensorInfo], np.ndarray]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name → tensor: matrices that keep the size of what they multiply, factors around 1, terms around 0; integers are copied."""
    generator = np.random.Generator(np.random.SFC64(23))
    for name, info in infos.items():
        known = DTYPES.get(info.dtype)
        dtype = getattr(torch, known[0]) if known else None
        if dtype is None or (dtype.is_floating_point and dtype.itemsize < 2) or dtype.is_complex:
            raise NoTemplateError(f"the weight {name} is stored as {info.dtype}")
        if not dtype.is_floating_point:
            yield name, torch.from_numpy(stored(info).copy()).view(dtype).reshape(info.shape)
            continue
        shape = sizes(info)
        tensor = torch.from_numpy(generator.random(shape, np.float32)).sub_(0.5).mul_(math.sqrt(12))  # variance 1
        if len(shape) > 1:
            tensor *= 1 / math.sqrt(max(1, min(shape[-2:])))
        elif name.endswith("bias"):
            tensor *= 0.1
        else:
            tensor.mul_(0.1).add_(1)
        yield name, tensor.to(dtype)
