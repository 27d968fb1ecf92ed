"""Parsing the keys of an adapter's weights: which parameter of the base each key belongs to, and in what role.

Called by `handlers.merge.plan.matcher`. Names that training wrappers leave in the path are removed, and the key formats of older PEFT
releases are understood. Only names are used; no tensor is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?=\.)")
_LORA = re.compile(
    r"^(?P<module>.+?)(?P<nested>(\.base_layer)*)\.lora_(?P<role>A|B|E|embedding_A|embedding_B|magnitude_vector)"
    r"(\.(?!(weight|bias)$)(?P<adapter>[^.]+))?(\.(?P<leaf>weight|bias))?$"
)
_TOKENS = re.compile(r"^(?P<module>.+?)(\.token_adapter)?\.trainable_tokens_delta(\.(?P<adapter>[^.]+))?$")
_SAVED = re.compile(r"^(?P<module>.+?)\.modules_to_save(\.(?!(weight|bias)$)(?P<adapter>[^.]+))?\.(?P<leaf>.+)$")
_ORIGINAL = re.compile(r"^(?P<module>.+?)\.original_module\.(?P<leaf>.+)$")
_KEPT_INSIDE = re.compile(r"(\.token_adapter)?\.base_layer\.")
_INNER = re.compile(rf"^(?P<module>.+?){_KEPT_INSIDE.pattern}(?P<leaf>[^.]+)$")


@dataclass
class Factors:
    """The keys of one low-rank change of a module, by role; `nested` is the number of `.base_layer` wrappers between it and the module."""

    module: str
    nested: int = 0
    roles: dict[str, str] = field(default_factory=dict)
    """"A", "B", "E", "embedding_A", "embedding_B", "magnitude_vector", "B.bias" → key."""


@dataclass
class Keys:
    """All keys of an adapter; each key is in exactly one of these tables."""

    factors: dict[tuple[str, int], Factors] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """Module → key of the rows of trained tokens."""
    saved: dict[str, str] = field(default_factory=dict)
    """Parameter → key that replaces it."""
    base: dict[str, str] = field(default_factory=dict)
    """Parameter → key of the base's own value, which was saved along with the adapter."""
    adapters: set[str] = field(default_factory=set)
    """Adapter names that occur in the keys; PEFT itself does not write them."""


def without_prefixes(key: str) -> str:
    """Return a key without the prefixes that PEFT, torch.compile, FSDP and activation checkpointing add."""
    key = WRAPPERS.sub("", key).lstrip(".")
    key = key.removeprefix("module.") if key.startswith("module.base_model.") else key
    return key.removeprefix("base_model.model.") if key.startswith("base_model.model.") else key.removeprefix("base_model.")


def without_wrappers(key: str) -> str:
    """A key of the base's own value under its name in the base: PEFT's wrappers of LoRA and of trained tokens keep it inside of them."""
    return _KEPT_INSIDE.sub(".", key)


def parse(keys: Iterable[str]) -> Keys:
    """Sort all keys by what they are; a key without a LoRA name is a parameter that was saved as a whole."""
    parsed = Keys()
    for key in sorted(keys):
        name = without_prefixes(key)
        if match := _LORA.match(name):
            nested = match["nested"].count("base_layer")
            role = match["role"] + (".bias" if match["leaf"] == "bias" else "")
            parsed.factors.setdefault((match["module"], nested), Factors(match["module"], nested)).roles[role] = key
        elif match := _TOKENS.match(name):
            parsed.tokens[match["module"]] = key
        elif match := _SAVED.match(name):
            parsed.saved[f"{match['module']}.{match['leaf']}"] = key
        elif match := _ORIGINAL.match(name):
            # Saved beside its trained copy where the vocabulary was resized. What shares its weight with the base's is left with it.
            parsed.base[f"{match['module']}.{match['leaf']}"] = key
        elif match := _INNER.match(name):
            # A bias below a LoRA layer was trained itself; a weight there is the base's.
            (parsed.base if match["leaf"] == "weight" else parsed.saved)[f"{match['module']}.{match['leaf']}"] = key
        else:
            parsed.saved[name] = key
        if match and match.groupdict().get("adapter"):
            parsed.adapters.add(match["adapter"])
    return parsed


def doubles(keys: Iterable[str]) -> set[str]:
    """Return the keys of saved modules that the file holds under their plain name too, which is the one that PEFT reads.

    PEFT 0.21 saves an embedding or a head of a resized vocabulary that was trained whole as `M.weight`, `M.modules_to_save.weight` and, as
    it was before the training, `M.original_module.weight`.
    """
    named = {without_prefixes(key): key for key in keys}
    matches = ((match, key) for name, key in named.items() if (match := _SAVED.match(name)))
    return {key for match, key in matches if f"{match['module']}.{match['leaf']}" in named}
