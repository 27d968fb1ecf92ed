"""The weights of a full fine-tune as they are: placed, or turned from `.bin` into safetensors.

Called by `handlers.merge.full`. Only weights and their index are taken, so that what else a training leaves (optimizer, random states,
arguments) stays behind. The pin's files are never rewritten; a file that shares its inode with another name (the trainer's own,
perhaps) is copied, since somebody may rewrite it in place. Converting holds one `.bin` file's tensors at a time.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from daemon.durable import clone, place
from daemon.errors import Permanent
from handlers.model_files import INDEX, SINGLE, setting, tensors, weight_files

OPERATION = "convert the weights to safetensors"


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
    """The tensors of a `.bin` file by name, mapped where its format allows it. Permanent when there is anything but tensors to run."""
    import pickle

    import torch

    if not path.is_file():
        raise Permanent("file-missing", OPERATION, "the file does not exist", "check that the folder is complete", path=path)
    try:
        # Files from before torch 1.6 are no archives and can't be mapped.
        table = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise Permanent(
            "unsafe-pickle",
            OPERATION,
            f"the file holds more than tensors, or is cut short ({said})",
            "save the model with safe_serialization=True; pickled code is never executed",
            path=path,
        ) from None
    tensors = {str(name): value for name, value in table.items() if isinstance(value, torch.Tensor)} if isinstance(table, dict) else {}
    if not tensors:
        cause = "it holds no table of tensors" + (f", but {', '.join(map(str, list(table)[:3]))}" if isinstance(table, dict) else "")
        raise Permanent("no-tensors", OPERATION, cause, "save the model with save_pretrained", path=path)
    return tensors


def _unshared(table: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Contiguous tensors that share no memory; a head that is its embedding is left out when config.json ties them."""
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

    # Where config.json does not say it the model's class decides; a head too many does no harm, one too few does.
    tied = setting(config, "tie_word_embeddings") is True
    mapping: dict[str, str] = {}
    for name in names:
        target = SINGLE if len(names) == 1 else name.replace("pytorch_model", "model", 1).removesuffix(".bin") + ".safetensors"
        table = _unshared(_unpickle(source / name), tied)
        if twice := sorted(table.keys() & mapping.keys()):
            cause = f"{twice[0]} is in two files"
            raise Permanent("bad-index", OPERATION, cause, "restore the model's files", path=source / name)
        save_file(table, output / target, metadata={"format": "pt"})
        mapping.update(dict.fromkeys(table, target))
    if len(names) > 1:
        size = sum(info.size for name in set(mapping.values()) for info in _headers(output / name))
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(mapping.items()))}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _headers(path: Path) -> list[Any]:
    from handlers.model_files import read_header

    return list(read_header(path).values())
