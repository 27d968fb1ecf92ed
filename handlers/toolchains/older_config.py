"""A config.json of transformers 5 made readable to transformers 4: the rotary embedding's facts under the names that it knows.

transformers 5 writes them into `rope_parameters`, of which transformers 4 knows nothing: it takes its own defaults without a word, and
the model computes something else. Used inside toolchains that hold transformers 4. Imports the standard library alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WEIGHTS = (".safetensors", ".bin", ".index.json")
_NESTED = {
    "gemma3": ("rope_theta", "rope_local_base_freq"),
    "gemma3_text": ("rope_theta", "rope_local_base_freq"),
    "gemma3n_text": ("rope_theta", "rope_local_base_freq"),
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "modernbert-decoder": ("global_rope_theta", "local_rope_theta"),
}
"""Model type → the names of the base frequency in its full and in its sliding attention."""
_OWN_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}
"""Model type → names of its own."""


class UntranslatableError(Exception):
    """The rotary embedding has a form that transformers 4 has no names for."""


def translated(config: dict[str, Any]) -> dict[str, Any]:
    """A config with everything that `rope_parameters` says under the older names too, in nested configs likewise.

    What is there under an older name already is overwritten, since transformers 5 goes by `rope_parameters`. Raises
    UntranslatableError.
    """
    answer = {key: translated(value) if key.endswith("_config") and isinstance(value, dict) else value for key, value in config.items()}
    rope = config.get("rope_parameters")
    return {**answer, **_older_names(rope, str(config.get("model_type")))} if rope else answer


def _older_names(rope: dict[str, Any], model_type: str) -> dict[str, Any]:
    if "full_attention" not in rope and "sliding_attention" not in rope:
        return _flat(rope, model_type)
    full, sliding = rope.get("full_attention", {}), rope.get("sliding_attention", {})
    if model_type in _NESTED:
        if sliding.get("rope_type", "default") != "default":
            raise UntranslatableError(f"the rotary embedding of {model_type}'s sliding attention is scaled")
        names = _NESTED[model_type]
        values = {name: one["rope_theta"] for name, one in zip(names, (full, sliding), strict=True) if "rope_theta" in one}
        return {**values, **_scaling(full)}
    if full == sliding or not sliding or not full:
        return _flat(full or sliding, model_type)
    raise UntranslatableError(f"the layers of {model_type} differ in their rotary embedding: {json.dumps(rope)}")


def _flat(rope: dict[str, Any], model_type: str) -> dict[str, Any]:
    values: dict[str, Any] = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    own = {_OWN_NAMES[model_type][key]: value for key, value in values.items() if key in _OWN_NAMES.get(model_type, {})}
    return {**values, **own, **_scaling(rope)}


def _scaling(rope: dict[str, Any]) -> dict[str, Any]:
    if rope.get("rope_type", "default") == "default":
        return {}
    return {"rope_scaling": {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}}


def readable_copy(source: Path, target: Path) -> Path:
    """A model folder at the new path `target` whose weights are links to those of `source`, with a translated config.json.

    Tokenizers stay behind: transformers 4 can't load those that transformers 5 saved.
    """
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name.endswith(_WEIGHTS) or path.name == "generation_config.json":
            os.symlink(path.resolve(), target / path.name)
    config = translated(json.loads((source / "config.json").read_text()))
    (target / "config.json").write_text(json.dumps(config, indent=1))
    return target


def check_read_back(wanted: dict[str, Any], get: Callable[[str], Any]) -> None:
    """Compare the config that the older library made of the translated one (`get` gives an attribute). Raises UntranslatableError."""
    for key, value in _older_names(wanted["rope_parameters"], str(wanted.get("model_type"))).items() if "rope_parameters" in wanted else ():
        read = get(key)
        if key != "rope_scaling" and read is not None and read != value:
            raise UntranslatableError(f"{key} was read as {read} and is {value}")
