"""A base whose vocabulary the training has resized: PEFT does not resize it, its users do before they load the adapter.

Called by the live model's engines. The shapes of the embeddings in the adapter's file show how many rows there have to be. Rows that
neither base nor adapter holds are made up when the model is loaded, so that what it says of their tokens means nothing: these are found by
asking the loaded model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from handlers.validate.engines.adapters.loading import in_base


@dataclass(frozen=True)
class Wanted:
    """A weight that the adapter holds in another size than the base has it."""

    name: str
    shape: tuple[int, ...]
    """In the base."""
    rows: int
    """In the adapter."""


def wanted(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> Wanted | None:
    """Give the embedding or head that the adapter, whose keys and `shapes` these are, holds in another size; None where there is none.

    `model` is not wrapped yet.
    """
    weights: list[Any] = [weight for layer in _layers(model) if (weight := getattr(layer, "weight", None)) is not None]
    held = {in_base(key): shape for key, shape in shapes.items() if len(shape) == 2}
    for name, value in model.named_parameters(remove_duplicate=False):
        shape = held.get(name)
        if shape is not None and any(value is weight for weight in weights) and shape[0] != value.shape[0]:
            return Wanted(name, tuple(value.shape), shape[0])
    return None


@dataclass(frozen=True)
class Resized:
    """What became of a base's vocabulary."""

    before: int
    after: int
    names: tuple[str, ...]
    """Of the weights of input embedding and head."""
    tails: dict[str, torch.Tensor]
    """Parameter → the mean of its rows, for each new one. In the model they are NaN, until `settle` has seen which ones are used."""

    def settle(self, wrapped: Any) -> list[str]:
        """Put the made-up rows where no file has filled them, once PEFT has loaded the adapter; what there is to tell."""
        notes = [
            f"The base has {self.before} tokens and the adapter's embeddings {self.after}: the base was resized before PEFT loaded it."
        ]
        notes += [
            f"{name} has {len(rows)} rows that no file holds ({rows[0]} to {rows[-1]}): neither the base nor the adapter has them. They get"
            " the mean of the other rows, so what it says of these tokens means nothing. Save the adapter with this layer among its"
            " modules_to_save, or train on the resized base that was saved first."
            for name, rows in self._made_up(wrapped.get_base_model()).items()
        ]
        for name, value in wrapped.named_parameters():
            tails = (tail for key, tail in self.tails.items() if _of_layer(name, key) and value.shape == (self.after, *tail.shape[1:]))
            if (tail := next(tails, None)) is not None:
                mine = value.data[self.before :]
                mine.copy_(torch.where(torch.isnan(mine), tail, mine))
        return notes

    def _made_up(self, model: Any) -> dict[str, list[int]]:
        """Give weight → the new tokens for which the layer, adapter and all, gives what was never loaded."""
        places, invented = torch.arange(self.before, self.after), dict[str, list[int]]()
        embedding, head = _layers(model)
        with torch.inference_mode():
            answers = [embedding(places)] if embedding is not None and len(places) else []
            if head is not None and len(places):
                width = next(tail.shape[1] for tail in self.tails.values() if tail.dim() == 2)
                answers.append(head(torch.zeros(1, width)).T[self.before :])
        for name, answer in zip(self.names, answers, strict=False):
            if (rows := places[torch.isnan(answer).any(dim=-1)]).numel():
                invented[name] = rows.tolist()
        return invented


def resize(model: Any, rows: int) -> Resized:
    """Give the model, which is not wrapped yet, a vocabulary of so many tokens by transformers' own function; new rows become NaN."""
    names = tuple(_name(model, layer) for layer in _layers(model) if layer is not None)
    before = int(model.get_input_embeddings().weight.shape[0])
    model.resize_token_embeddings(rows, mean_resizing=False)
    tails, layers = {}, {name.rpartition(".")[0] for name in names}
    for name, value in model.named_parameters():
        if rows > before and value.shape[0] == rows and name.rpartition(".")[0] in layers:
            mean = value.data[:before].float().mean(dim=0, keepdim=True)
            tails[name] = mean.expand(rows - before, *value.shape[1:]).to(value.dtype).clone()
            value.data[before:] = float("nan")
    return Resized(before, rows, names, tails)


def _of_layer(name: str, parameter: str) -> bool:
    """Tell whether a parameter, by its name under PEFT's wrappers, is of the layer that had this one before."""
    return f".{parameter.rpartition('.')[0]}." in f".{name}"


def _layers(model: Any) -> list[Any]:
    """Give input embedding and head, None for one that the model has not."""
    try:
        return [model.get_input_embeddings(), model.get_output_embeddings()]
    except NotImplementedError:  # a model of pictures or sound, which transformers knows no embedding of
        return []


def _name(model: Any, layer: Any) -> str:
    """Give the name of a layer's weight."""
    return next(f"{name}.weight" for name, module in model.named_modules(remove_duplicate=False) if module is layer)
