"""Every way to adapt a model that the matrix of exports has: the settings of PEFT's configuration for a family.

Used by `design` (names alone) and by `stock`, whose process has nothing of ckptd: nothing of it is imported here. Whether PEFT can adapt or
merge a family so is not said here: stock PEFT says it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.matrix.families import Family

Settings = Callable[[Family], dict[str, Any]]
"""Settings of the configuration beside the task, for a family; target_modules are its linear layers where they say nothing."""


def _lora(**settings: Any) -> Settings:
    return lambda _: {"r": 4, "lora_alpha": 6, **settings}


def _patterns(family: Family) -> dict[str, Any]:
    first, last = family.linear[0], family.linear[-1]
    return {"r": 4, "lora_alpha": 6, "rank_pattern": {first: 2, last: 6}, "alpha_pattern": {rf".*\.0\..*{first}": 11, last: 3}}


LORA: dict[str, Settings] = {
    "LoRA": _lora(),
    "rsLoRA": _lora(use_rslora=True),
    "DoRA": _lora(use_dora=True),
    "PiSSA": _lora(init_lora_weights="pissa"),
    "patterns": _patterns,
    "lora_bias": _lora(lora_bias=True),
    "biases": _lora(bias="all"),
    "all-linear": _lora(target_modules="all-linear"),
    "embedding": lambda family: {"r": 4, "lora_alpha": 6, "target_modules": [*family.linear[:1], family.embedding or "none"]},
    "saved norms": lambda family: {"r": 4, "lora_alpha": 6, "modules_to_save": list(family.norms)},
    "saved head": lambda family: {"r": 4, "lora_alpha": 6, "modules_to_save": [family.head]},
    "tokens": lambda family: {"r": 4, "lora_alpha": 6, "trainable_token_indices": {family.embedding or "none": [5, 6, 300]}},
    "parameters": lambda family: {"r": 4, "lora_alpha": 6, "target_parameters": list(family.experts) or ["none.none"]},
}
"""Kinds of LoRA."""
OTHERS: dict[str, Settings] = {
    "ADALORA": lambda _: {"init_r": 6, "target_r": 3, "total_step": 10},
    "BOFT": lambda _: {"boft_block_size": 4},
    "C3A": lambda _: {"block_size": 8},
    "FOURIERFT": lambda _: {"n_frequency": 50},
    "HRA": lambda _: {"r": 4},
    "IA3": lambda family: {"target_modules": [*family.linear, *family.inner], "feedforward_modules": list(family.inner)},
    "LN_TUNING": lambda family: {"target_modules": list(family.norms)},
    "LOHA": lambda _: {"r": 4, "alpha": 6},
    "LOKR": lambda _: {"r": 4, "alpha": 6},
    "MISS": lambda _: {"r": 4},
    "OFT": lambda _: {"oft_block_size": 8, "r": 0},
    "RANDLORA": lambda _: {"r": 4},
    "SHIRA": lambda _: {"r": 2},
    "TRAINABLE_TOKENS": lambda family: {"token_indices": [5, 6, 300], "target_modules": [family.embedding or "none"]},
    "VBLORA": lambda _: {"num_vectors": 16, "vector_length": 8, "topk": 2, "r": 2},
    "VERA": lambda _: {"r": 8},
}
"""Methods with a paper and users of their own; each goes over all families."""
RARE: dict[str, Settings] = {
    "ADAPTION_PROMPT": lambda _: {"adapter_len": 4, "adapter_layers": 1, "target_modules": "self_attn"},
    "LILY": lambda _: {}, "PROMPT_TUNING": lambda _: {"num_virtual_tokens": 4}, "PREFIX_TUNING": lambda _: {"num_virtual_tokens": 4},
    "DEFT": lambda _: {}, "DELORA": lambda _: {"r": 4}, "FROD": lambda _: {}, "GLORA": lambda _: {}, "GRALORA": lambda _: {"r": 4},
    "HIRA": lambda _: {"r": 4}, "OSF": lambda _: {}, "PEANUT": lambda _: {}, "PSOFT": lambda _: {"r": 4}, "PVERA": lambda _: {"r": 8},
    "ROAD": lambda _: {"group_size": 8}, "SUPERTUNING": lambda _: {}, "TINYLORA": lambda _: {}, "UNILORA": lambda _: {},
    "WAVEFT": lambda _: {"n_frequency": 50},
}  # fmt: skip
"""Other methods of PEFT, some of which can't be merged; each goes over one family of every kind of layers."""
METHODS: dict[str, Settings] = {**LORA, **OTHERS, **RARE}


def config_of(name: str, family: Family) -> Any:
    """PEFT's configuration of the method for a family."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind = name if name in OTHERS or name in RARE else "LORA"
    cls = next(cls for known, cls in PEFT_TYPE_TO_CONFIG_MAPPING.items() if str(getattr(known, "value", known)) == kind)
    settings = {"task_type": family.task, "target_modules": list(family.linear), **METHODS[name](family)}
    if "none" in str(settings):
        raise ValueError("the family has nothing that the method is for")
    return cls(**{field: value for field, value in settings.items() if field in cls.__dataclass_fields__})
