"""Weights that modules share, in a merge by PEFT: which of them get one of their own, and what config.json then says.

Called by `handlers.merge.peft.merge`, before and after PEFT merges. The live adapter changes the module on which it was trained. PEFT's
merge changes the shared weight, and with it all modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from handlers.merge.adapters.adapter import Adapter
from handlers.merge.plan.tied_weights import SCALED_BY_KEY, drops_bias, refuse_scaled
from handlers.models.files import Edits


def _sharing(model: Any) -> Iterator[dict[str, Any]]:
    """Path → module, for the modules that share one weight; wrappers of PEFT are left out, what they hold is not."""
    import torch

    owners: dict[int, dict[str, Any]] = {}
    for name, module in model.named_modules():
        weight = None if hasattr(module, "base_layer") or hasattr(module, "token_adapter") else getattr(module, "weight", None)
        if isinstance(weight, torch.nn.Parameter):
            owners.setdefault(id(weight), {})[name] = module
    return (members for members in owners.values() if len(members) > 1)


def tied_modules(model: Any) -> list[list[str]]:
    """Return the paths of the modules that share a weight, one list for each weight."""
    return [list(members) for members in _sharing(model)]


def untie(model: Any, adapter: Adapter) -> None:
    """Give each module that the adapter changes a weight of its own where it shares one, unless it changes them all alike.

    Permanent where the adapter's trained tokens act on a head of which PEFT then leaves out the bias.
    """
    import torch

    for layer in model.modules():
        bias = getattr(layer.base_layer, "bias", None) if hasattr(layer, "trainable_tokens_delta") else None
        if bias is not None and bool(bias.any()):
            raise drops_bias(
                adapter, next(name for name, module in model.named_modules() if module is layer).removesuffix(".token_adapter")
            )
    for members in list(_sharing(model)):
        adapted = {name: module for name, module in members.items() if name.endswith(".base_layer")}
        if not _tied_tokens(model, list(adapted)):
            for module in adapted.values():
                module.weight = torch.nn.Parameter(module.weight.detach().clone(), requires_grad=False)


def _tied_tokens(model: Any, adapted: list[str]) -> bool:
    """Return whether all adapted modules get the same rows of trained tokens: PEFT ties the others' adapters to the input embeddings'."""
    layers = [model.get_submodule(name.removesuffix(".base_layer")) for name in adapted]
    if len(layers) < 2 or not all(hasattr(layer, "trainable_tokens_delta") for layer in layers):
        return False
    leaders = [layer for layer in layers if layer.tied_adapter is None]
    return len(leaders) == 1 and getattr(model.get_input_embeddings(), "token_adapter", None) is leaders[0]


def separate(model: Any, groups: list[list[str]], adapter: Adapter) -> tuple[Edits, list[str]]:
    """Part the modules of a merged model that shared a weight and no longer have the same values; the edits of config.json and a warning.

    Permanent for a model that computes something else when they are separate.
    """
    import torch

    edits: Edits = {}
    said = []
    for names in groups:
        modules = [model.get_submodule(name) for name in names]
        first = modules[0].weight
        if all(module.weight is first or (module.weight.shape == first.shape and torch.equal(module.weight, first)) for module in modules):
            continue
        kind = model.config.model_type
        refuse_scaled(adapter, kind)
        for module in modules:
            module.weight = torch.nn.Parameter(module.weight.detach().clone(), requires_grad=False)
        for part in (model.config, model.config.get_text_config()):
            part.tie_word_embeddings = False
        edits["tie_word_embeddings"] = False
        if kind in SCALED_BY_KEY:
            edits["scale_decoder_outputs"] = model.config.scale_decoder_outputs
        said.append(
            f"{' and '.join(names)} are no longer tied: the adapter changed one of them, or changed them differently, so each is written"
        )
    return edits, said
