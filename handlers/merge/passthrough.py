"""A full fine-tune has nothing to merge: its weights are placed as they are, or turned from `.bin` into safetensors.

Called by the merge stage. The pin's files are never rewritten; a file that shares its inode with another name
(the trainer's own, perhaps) is copied, since somebody may rewrite it in place.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from daemon.durable import clone, place
from daemon.errors import Permanent
from handlers.model_files import INDEX, setting, tensors, weight_files


def _bring(source: Path, target: Path) -> None:
    """`target` with the contents of `source`: a hard link only where nobody else holds the inode."""
    real = source.resolve()
    if real.stat().st_nlink == 1:
        place(real, target)
    elif not clone(real, target):
        shutil.copyfile(real, target)


def place_weights(source: Path, config: dict[str, Any], output: Path) -> bool:
    """Bring the weights of the model in `source` into `output`; True when they had to be converted from `.bin`.

    Permanent when they are cut short, don't fit their index, or hold more than tensors.
    """
    files = weight_files(source)
    if files.kind == "bin":
        _convert(source, files.names, config, output)
        return True
    tensors(source)
    for name in [*files.names, *([files.index] if files.index else [])]:
        _bring(source / name, output / name)
    return False


def _unpickle(path: Path) -> dict[str, Any]:
    import pickle

    import torch

    try:
        table = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise Permanent(
            "unsafe-pickle",
            "convert the weights to safetensors",
            f"the file holds more than tensors, is cut short or has the old format ({str(error).strip().splitlines()[0][:160]})",
            "save the model with safe_serialization=True; pickled code is never executed",
            path=path,
        ) from None
    return {name: value for name, value in table.items() if isinstance(value, torch.Tensor)}


def _unshared(table: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Contiguous tensors that share no memory; a head that is its embedding is left out when the model ties them."""
    seen: set[int] = set()
    result = {}
    for name in sorted(table, key=lambda name: (name.endswith("lm_head.weight"), name)):
        tensor = table[name]
        storage = tensor.untyped_storage().data_ptr()
        if storage in seen and tied and name.endswith("lm_head.weight"):
            continue
        result[name] = tensor.contiguous().clone() if storage in seen else tensor.contiguous()
        seen.add(storage)
    return result


def _convert(source: Path, names: tuple[str, ...], config: dict[str, Any], output: Path) -> None:
    from safetensors.torch import save_file

    tied = setting(config, "tie_word_embeddings") is not False
    mapping: dict[str, str] = {}
    for name in names:
        target = name.replace("pytorch_model", "model", 1).removesuffix(".bin") + ".safetensors"
        table = _unshared(_unpickle(source / name), tied)
        save_file(table, output / target, metadata={"format": "pt"})
        mapping.update(dict.fromkeys(table, target))
    if len(names) > 1:
        size = sum(info.size for name in set(mapping.values()) for info in _headers(output / name))
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(mapping.items()))}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _headers(path: Path) -> list[Any]:
    from handlers.model_files import read_header

    return list(read_header(path).values())
