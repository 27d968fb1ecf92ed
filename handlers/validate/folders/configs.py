"""Whether the config.json of an artifact says the same as that of the merged model. Called where the files of an artifact are compared.

A setting that decides what a model computes (the base of a rotary embedding, the epsilon of a norm, the number of heads) changes the
answers of a form in few bits less than its rounding does. The type of the weights and how they are quantized are the form's own. The names
that older releases of transformers know may be added, with the values that belong to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from daemon.contract.models.safetensors import TensorInfo
from daemon.contract.values import Json
from handlers.models.files import setting
from handlers.models.releases.older_readers import UntranslatableError, translated
from handlers.validate.folders.wording import NOTHING, instead

OWN = ("dtype", "torch_dtype", "quantization_config", "transformers_version", "_name_or_path")
"""Keys that a form has of its own, or that decide nothing."""
FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Type in a safetensors file → its name in config.json."""
_HEADS, _EMBEDDINGS = ("lm_head.weight",), ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
COMPARED = 64 << 20
"""Bytes of a head and an embedding that are compared."""
_ODD = (UntranslatableError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def difference(config: Json, wanted: Json, *, added: bool = False) -> str | None:
    """Say which settings of `config` are not those of `wanted`, as a clause; None where all are. `added`: it may have more."""
    older = wanted
    with contextlib.suppress(*_ODD):  # then no older names were added
        older = translated(wanted)
    mine, theirs, also = (_leaves(settings) for settings in (config, wanted, older))
    wrong = [
        (key, mine.get(key, NOTHING), theirs.get(key, also.get(key, NOTHING)))
        for key in (theirs if added else dict.fromkeys((*theirs, *mine)))
        if not any(_same(mine.get(key, NOTHING), other.get(key, NOTHING)) for other in (theirs, also))
    ]
    return f"its config.json is not that of the model that it was made of: {instead(wrong)}" if wrong else None


def form_fault(config: Json, wanted: Json, stored: Collection[str]) -> str | None:
    """Say why a config.json names a type of its weights, or a way in which they are quantized, that neither the merged model's names nor
    its weights have, as a clause: transformers computes in the type that it names. `stored`: the types of all numbers in the folder's
    safetensors files, by their names there; nothing where it has no such files."""
    quantized = config.get("quantization_config")
    if quantized is not None and quantized != wanted.get("quantization_config") and not set(stored) - set(FLOATS):
        return "its config.json says that its weights are quantized, and it has no such weights (quantization_config)"
    floats = {FLOATS[name] for name in stored if name in FLOATS}
    types, mine = floats | {_dtype(wanted)}, _dtype(config)
    if not floats or mine is None or mine in types:
        return None
    return f"its config.json says dtype {mine}, and its weights are stored in {', '.join(sorted(filter(None, types)))}"


def tied_fault(config: Json, folder: Path, tensors: Mapping[str, TensorInfo]) -> str | None:
    """Say that a config.json calls head and embedding the same, and the folder's safetensors files hold both, unlike each other, as a
    clause: some releases of transformers, and converters, take one for both."""
    if not setting(config, "tie_word_embeddings"):
        return None
    head, embedding = (next((info for name, info in tensors.items() if name.endswith(ends)), None) for ends in (_HEADS, _EMBEDDINGS))
    if head is None or embedding is None or _bytes(folder, head) == _bytes(folder, embedding):
        return None
    return "its config.json says that the head is the embedding (tie_word_embeddings), and its files hold another head"


def _bytes(folder: Path, info: TensorInfo) -> bytes:
    """Give the numbers of a tensor: their first ones, which are enough to tell two matrices apart."""
    with (folder / info.file).open("rb") as stream:
        stream.seek(info.start)
        return stream.read(min(info.end - info.start, COMPARED))


def _dtype(config: Json) -> str | None:
    value = next((config[key] for key in ("dtype", "torch_dtype") if config.get(key)), None)
    return None if value is None else str(value).removeprefix("torch.")


def _leaves(value: Any, path: str = "") -> Json:
    """Give the values of a configuration by the path of their keys, those of `OWN` left out at every level."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    leaves: dict[str, Any] = {}
    for key, part in value.items():
        if key not in OWN:
            leaves |= _leaves(part, f"{path}.{key}" if path else str(key))
    return leaves


def _same(first: Any, second: Any) -> bool:
    return first == second and isinstance(first, bool) == isinstance(second, bool)
