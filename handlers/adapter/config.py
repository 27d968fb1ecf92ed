"""adapter_config.json as it is published: what PEFT wrote, without what only training needed.

Called by the stage. Older releases of PEFT, among them those inside of servers, refuse a configuration with a key that they don't know, and
each new release writes more of them, most at a default that says nothing. So what says nothing is left out, and what is known since long
stays. The names and defaults are those of PEFT's own classes, which makes this independent of the method.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from daemon.contract.values import Json
from handlers.merge.plan.matcher import PLAIN_INITIALIZERS

KNOWN = frozenset({
    "peft_type", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "r", "lora_alpha", "lora_dropout",
    "target_modules", "bias", "fan_in_fan_out", "modules_to_save", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern",
    "layers_to_transform", "layers_pattern", "init_lora_weights", "feedforward_modules",
})  # fmt: skip
"""Keys that readers look for, and that releases from the beginning of 2024 on know."""
OF_INITIALIZERS = {"eva_config": "eva", "corda_config": "corda", "lora_ga_config": "lora_ga", "loftq_config": "loftq"}
"""Key → the value of init_lora_weights that it belongs to. They name files of the training box."""
OF_FEATURES = {"megatron_core": "megatron_config", "qalora_group_size": "use_qalora"}
"""Key with a default that is not empty → the key that switches on what it belongs to."""
WRITER = ("peft_version", "runtime_config")
"""What tells of the process that wrote the file."""


def cleaned(config: Json, base_name: str | None) -> Json:
    """The configuration to publish, its keys sorted; `base_name` is what it is to name the base. Nothing that acts on a load is changed."""
    kept = {key: value for key, value in config.items() if key not in WRITER}
    if "init_lora_weights" in kept and kept["init_lora_weights"] in PLAIN_INITIALIZERS:
        kept["init_lora_weights"] = True  # all values are in the file, and not every release knows every initializer
    for key, initializer in OF_INITIALIZERS.items():
        if kept.get("init_lora_weights") != initializer:
            kept.pop(key, None)
    for key, feature in OF_FEATURES.items():
        if not kept.get(feature):
            kept.pop(key, None)
    defaults = _defaults(str(config["peft_type"]))
    kept = {key: value for key, value in kept.items() if key in KNOWN or not _says_nothing(key, value, defaults)}
    targets = kept.get("target_modules")
    if isinstance(targets, list):
        kept["target_modules"] = sorted(targets)  # PEFT writes a set, in another order each time
    kept |= {"base_model_name_or_path": base_name, "inference_mode": True}
    return {key: kept[key] for key in sorted(kept)}


def dropped(config: Json, published: Json) -> list[str]:
    """The keys that are not published, sorted."""
    return sorted(config.keys() - published.keys())


def _says_nothing(key: str, value: Any, defaults: Json) -> bool:
    """Whether a key has a value that its absence means too: an empty one that is PEFT's own default."""
    return (value is None or value is False or value in ([], {})) and key in defaults and value == defaults[key]


def _defaults(method: str) -> Json:
    """Key → default of PEFT's class for a method; nothing for one that the installed release does not know."""
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
    from peft.utils.peft_types import PeftType

    if method not in PeftType.__members__:
        return {}
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(PEFT_TYPE_TO_CONFIG_MAPPING[PeftType[method]]):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults
