"""Activations in torch: the modules that compute them, and their values over a few calls.

Called by the onnx-activations stage. Layers are the list of modules that is as long as the configuration says; a layer's feed-forward part
is recognized by the names that transformers gives it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.families.base import architecture
from handlers.onnx.activations.calls import Call
from handlers.onnx.activations.contract import Kind
from handlers.onnx.options import OnnxOptions

OPERATION = "give the model's activations"
FEED_FORWARD = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "output.dense", "fc2")
"""Modules of a layer whose output is the feed-forward part's, the first that is there: Llama, Mixtral, Phimoe, DistilBERT, BERT, OPT."""


@dataclass(frozen=True)
class Site:
    """One activation and the module that it comes from."""

    name: str
    kind: Kind
    layer: int | None
    module: str


@dataclass
class Watched:
    """What hooks have seen in one forward pass, by the names of sites."""

    seen: dict[str, torch.Tensor] = field(default_factory=dict)


def layers_of(model: torch.nn.Module, folder: Path) -> list[tuple[str, torch.nn.Module]]:
    """Name and module of each layer in order; Permanent where the model has no such list."""
    count = model.config.get_text_config().num_hidden_layers  # type: ignore[operator, union-attr]
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    if not lists:
        cause = f"{architecture(folder)} has no list of {count} modules that are its layers"
        raise Permanent(FaultCode.NO_ACTIVATIONS, OPERATION, cause, "leave the onnx-activations variants out", path=folder)
    name, layers = min(lists, key=lambda pair: pair[0].count("."))
    return [(f"{name}.{number}", layer) for number, layer in enumerate(layers)]


def chosen_layers(wanted: Literal["last", "all"] | tuple[int, ...], count: int) -> tuple[int, ...]:
    """Numbers of the layers asked for; Permanent for one that the model does not have."""
    if wanted == "last":
        return (count - 1,)
    if wanted == "all":
        return tuple(range(count))
    beyond = [str(number) for number in wanted if number >= count]
    if beyond:
        cause = f"layer {', '.join(beyond)} was requested, but the model has {count} layers, 0 to {count - 1}"
        raise Permanent(FaultCode.NO_SUCH_LAYER, OPERATION, cause, f"set onnx.layers to numbers from 0 to {count - 1}")
    return tuple(dict.fromkeys(wanted))


def _feed_forward(name: str, layer: torch.nn.Module, folder: Path) -> str:
    modules = {inner for inner, _ in layer.named_modules()}
    part = next((inner for inner in FEED_FORWARD if inner in modules), None)
    if part is None:
        cause = f"the layers of {architecture(folder)} have no module that is known as their feed-forward part"
        raise Permanent(FaultCode.NO_ACTIVATIONS, OPERATION, cause, 'leave "mlp" out of onnx.kinds', path=folder)
    return f"{name}.{part}"


def sites(model: torch.nn.Module, folder: Path, options: OnnxOptions) -> tuple[tuple[Site, ...], int]:
    """The activations that the options ask for, in layer order, and how many layers the model has."""
    layers = layers_of(model, folder)
    numbers = chosen_layers(options.layers, len(layers))
    chosen = [Site("embeddings", "embeddings", None, layers[0][0])] if "embeddings" in options.kinds else []
    for number in numbers:
        name, layer = layers[number]
        if "hidden_states" in options.kinds:
            chosen.append(Site(f"hidden_states.{number}", "hidden_states", number, name))
        if "attentions" in options.kinds:
            chosen.append(Site(f"attentions.{number}", "attentions", number, name))
        if "mlp" in options.kinds:
            chosen.append(Site(f"mlp.{number}", "mlp", number, _feed_forward(name, layer, folder)))
    if not chosen:
        cause = "onnx.kinds and onnx.layers name no activation"
        raise Permanent(FaultCode.NO_ACTIVATIONS, OPERATION, cause, 'set onnx.kinds, for example to ["hidden_states"]', path=folder)
    return tuple(chosen), len(layers)


def _tensor(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


@contextlib.contextmanager
def watching(model: torch.nn.Module, wanted: Sequence[Site]) -> Iterator[Watched]:
    """Hooks that keep what each site gives, but for attentions, which the model's own output has."""
    watched, handles = Watched(), []

    def keep(site: Site) -> Any:
        def after(_module: Any, _arguments: Any, output: Any) -> None:
            watched.seen[site.name] = _tensor(output)

        return after

    def keep_input(_module: Any, arguments: Any, named: Any) -> None:
        watched.seen["embeddings"] = arguments[0] if arguments else named["hidden_states"]

    for site in wanted:
        module = model.get_submodule(site.module)
        if site.kind == "embeddings":
            handles.append(module.register_forward_pre_hook(keep_input, with_kwargs=True))
        elif site.kind != "attentions":
            handles.append(module.register_forward_hook(keep(site)))
    try:
        yield watched
    finally:
        for handle in handles:
            handle.remove()


def take_attentions(watched: Watched, output: Any, wanted: Sequence[Site], folder: Path) -> None:
    """Add the attention weights of a model's output; Permanent where the architecture gives none."""
    for site in wanted:
        if site.kind == "attentions":
            given = output.get("attentions")
            if not given or site.layer is None or site.layer >= len(given) or given[site.layer] is None:
                cause = f"{architecture(folder)} gives no attention weights of layer {site.layer}"
                raise Permanent(FaultCode.NO_ACTIVATIONS, OPERATION, cause, 'leave "attentions" out of onnx.kinds', path=folder)
            watched.seen[site.name] = given[site.layer]


def values(model: Any, wanted: Sequence[Site], made: Sequence[Call], folder: Path) -> list[dict[str, np.ndarray]]:
    """The sites' values as fp32 arrays by name, over all tokens of each call at once.

    Mixtures of experts give their feed-forward part's rows in one list; they come in the shape of all others.
    """
    answers = []
    asks = any(site.kind == "attentions" for site in wanted)
    for call in made:
        feeds = {name: torch.from_numpy(feed) for name, feed in call.feeds.items()}
        with torch.inference_mode(), watching(model, wanted) as watched:
            output = model(**feeds, **({"output_attentions": True} if asks else {}))
            take_attentions(watched, output, wanted, folder)
        arrays = {name: tensor.float().numpy().copy() for name, tensor in watched.seen.items()}
        rows, tokens = call.mask.shape
        answers.append({name: array.reshape(rows, tokens, -1) if array.ndim == 2 else array for name, array in arrays.items()})
    return answers
