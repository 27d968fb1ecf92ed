"""The layers of a model, which of them are alike, and which few stand for all.

Two layers are alike if all that their code can read is: classes, settings, shapes, and the content of buffers that are not stored, of all
modules in them, and what the configuration lists for each layer, which the model itself may look up; only the layer's own number may
differ. Called with loaded models of transformers.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch

NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "seed"})
"""Attributes that hold the layer's own number; `seed` is of random attention, which a graph has none of."""
_OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that every module has; its parts, parameters, buffers and hooks are looked at apart."""
FEWEST = 5
"""A model with fewer layers is traced whole: three of them are traced in any case."""
MOST = 0.6
"""And one of which more than this share of the layers would have to be traced."""


@dataclass(frozen=True)
class Layers:
    """Layers of a model that run one after the other, in order."""

    name: str
    """Of the list of modules: "model.layers"."""
    kinds: tuple[int, ...]
    """Of each layer; layers of the same kind are alike."""
    digests: tuple[str, ...]
    """Of each layer, equal to that of a layer of another model that is like it."""

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.kinds)


@dataclass(frozen=True)
class Outline:
    """All layers of a model, and what is around them."""

    lists: tuple[Layers, ...]
    """One list, or those of an encoder and a decoder."""
    around: str
    """A digest of what is outside of the layers, equal to that of another model that differs in the number of layers and tokens alone."""

    def alike(self, digests: Sequence[Sequence[str]]) -> bool:
        """Whether each list has the layers of these digests."""
        return [list(layer_list.digests) for layer_list in self.lists] == [list(wanted) for wanted in digests]


def of_model(model: torch.nn.Module) -> Outline | None:
    """The layers of a model; None where they are not one list, or two of an encoder-decoder."""
    encodes = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    lists = [
        (name, module) for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) > (0 if encodes else 1) and len({type(member) for member in module}) == 1
    ]  # fmt: skip
    outer = [(name, module) for name, module in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    if len(outer) != (2 if encodes else 1):
        return None
    layer_lists = []
    for name, layers in outer:
        known: dict[str, int] = {}
        listed = _listed(model, len(layers))
        kinds = tuple(known.setdefault(f"{signature(layer)} {more}", len(known)) for layer, more in zip(layers, listed, strict=True))
        digests = tuple(f"{signature(layer, alone=True)} {more}" for layer, more in zip(layers, listed, strict=True))
        layer_lists.append(Layers(name, kinds, digests))
    return Outline(tuple(layer_lists), _around(model, {name: len(layers) for name, layers in outer}))


def _around(model: Any, depths: Mapping[str, int]) -> str:
    """A digest of what the code outside of the lists of layers can read. The numbers of layers and of tokens count for nothing in it, nor
    does that of the padding token in an embedding, which matters in training alone."""
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    digest = hashlib.sha256()
    for line in _describe(model, True, skipped=tuple(depths)):
        key = line.partition(" = ")[0]
        depth = "layer" in key and any(line.endswith(f" = {count}") for count in depths.values())
        if key not in (" padding_idx", " name_or_path") and not depth:
            digest.update(re.sub(rf"\b{vocabulary}\b", "V", line).encode() + b"\n")
    return digest.hexdigest()


def _listed(model: Any, depth: int) -> list[str]:
    """What the configuration has for each layer in lists with an entry for each: `layer_types` above all."""
    parts = [part.to_dict() for part in (model.config, getattr(model.config, "text_config", None)) if part is not None]
    lists = {key: value for part in parts for key, value in part.items() if isinstance(value, list | tuple) and len(value) == depth}
    return [_value({key: value[number] for key, value in sorted(lists.items())}, True) for number in range(depth)]


def signature(layer: torch.nn.Module, *, alone: bool = False) -> str:
    """A digest of all that a layer's code can read but the values of its parameters and its own number.

    `alone`: without what it has in common with the model's other layers, above all the configuration.
    """
    digest = hashlib.sha256()
    for line in _describe(layer, alone):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _describe(layer: torch.nn.Module, alone: bool, skipped: Sequence[str] = ()) -> Iterator[str]:
    for name, module in layer.named_modules():
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in skipped):
            continue
        yield f"{name}: {type(module).__module__}.{type(module).__qualname__} {module.training}"
        for key, value in sorted(vars(module).items()):
            private = key.startswith("_")  # outside of layers, it is what transformers notes of how a model was loaded
            if key not in NUMBERS and key not in _OWN and not (private and skipped):
                yield f" {key} = {_value(value, alone or private)}"
        if hooks := [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]:
            yield f" hooks {_value(hooks, alone)}"
        for key, tensor in sorted(module.named_parameters(recurse=False)):
            yield f" parameter {key}: {tensor.dtype} {tuple(tensor.shape)}"
        for key, tensor in sorted(module.named_buffers(recurse=False)):
            if key not in module._non_persistent_buffers_set and tensor.is_floating_point():
                yield f" weight {key}: {tensor.dtype} {tuple(tensor.shape)}"  # stored with the parameters, and drawn as they are
                continue
            yield f" buffer {key}: {_value(tensor, alone)}"


def _value(value: Any, alone: bool) -> str:
    """A setting as text that is the same for equal settings."""
    if isinstance(value, torch.Tensor):
        content = hashlib.sha256(value.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        return f"{value.dtype} {tuple(value.shape)} {content}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item, alone) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_value(item, alone)}' for key, item in value.items())}}}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, functools.partial):
        return f"partial {_value((value.func, value.args, value.keywords), alone)}"
    name = getattr(value, "__qualname__", None)
    if name:  # a function or a class
        return f"{getattr(value, '__module__', '')}.{name}{_held(value, alone)}"
    return type(value).__qualname__ if alone else f"{type(value).__qualname__} {id(value)}"


def _held(function: Any, alone: bool) -> str:
    """What a function holds beside its code: the variables around it, and its defaults."""
    held: list[Any] = [*(getattr(function, "__defaults__", None) or ()), *(getattr(function, "__kwdefaults__", None) or {}).values()]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # it has no value yet
            held.append(cell.cell_contents)
    simple = [
        value
        for value in held
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.Tensor | list | tuple)
    ]
    return f" {_value(simple, alone)}" if simple else ""


def chosen(kinds: Sequence[int]) -> tuple[int, ...]:
    """Numbers of the layers that stand for all, in order; () where too few would be spared.

    The first, the second and the last one are always among them. Each kind that repeats is there twice behind the first layer, so that one
    can be shown to be like the other, and each kind follows each kind that it follows in the model.
    """
    depth = len(kinds)
    if depth < FEWEST or kinds[1:].count(kinds[-1]) < 2:  # nothing is like the last one
        return ()
    short: list[int] = []
    start = 0
    for kind, run in groupby(kinds):
        length = len(list(run))
        after_itself = any(kinds[number] == kinds[other] == kind for number, other in pairwise(short[1:]))
        short += range(start, start + min(length, 3 if not start else 1 if after_itself else 2))
        start += length
    wanted = set(pairwise(kinds[1:]))
    repeated = {kind for kind in kinds[1:] if kinds[1:].count(kind) > 1}
    for count in range(2, len(short) + 1):
        choice = [*short[:count], *([depth - 1] if short[count - 1] != depth - 1 else [])]
        if wanted <= {(kinds[number], kinds[other]) for number, other in pairwise(choice[1:])} and all(
            sum(kinds[number] == kind for number in choice[1:]) > 1 for kind in repeated
        ):
            return tuple(choice) if len(choice) <= MOST * depth else ()
    return ()
