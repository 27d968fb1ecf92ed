"""A full fine-tune has no adapter: its weights are placed as they are, or streamed into the dtype and the files that are asked for.

Called by the merge stage. Only weights and their index are taken, so that what else a training leaves (optimizer, random states,
arguments) stays behind. What is asked for and there already is not done: such weights are placed too. The pin's files are never
rewritten; a file that shares its inode with another name (the trainer's own, perhaps) is copied, since somebody may rewrite it in
place. `.bin` weights are turned into safetensors first, one file's tensors at a time, inside the output folder where they have to be
streamed after that. Streaming takes the memory of a merge that streams, and goes on at the file like one; the conversion of `.bin`
weights begins again.
"""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import clone, place, remove_tree
from handlers.merge.api import MergeReport, report_of
from handlers.merge.engine.execute import Done, Meter, Origin, Progress, check_written, set_threads, stream
from handlers.merge.engine.resume_ledger import States, file_state, sweep
from handlers.merge.plan.output_layout import plan
from handlers.merge.plan.prepare import match_none, rewrite
from handlers.merge.weights.base_digest import base_digest
from handlers.models.files import (
    INDEX,
    SINGLE,
    TensorInfo,
    copy_config,
    main_dtype,
    read_json,
    setting,
    stored_bytes,
    tensors,
    weight_files,
)

CONVERTED = ".converted"
"""Folder in the output where `.bin` weights lie as safetensors until they have been streamed."""
PICKLED = "the checkpoint's pickled .bin weights were converted to safetensors"


def take_over(
    checkpoint: Path, output: Path, *, threads: int = 1, cache: Path | None = None, progress: Progress | None = None,
    dtype: str = "base", shard_bytes: int = 0, verify: str = "sample",
) -> MergeReport:  # fmt: skip
    """Bring the full fine-tune in `checkpoint` into the existing folder `output`: configuration and weights; whatever else is there goes.

    The options are those of `merge_adapter`. Called again with the same ones after an interruption, it keeps the weight files that
    were streamed to their end.

    Raises Permanent for damaged weights and for values that the dtype can't hold; Retryable when the checkpoint changes meanwhile;
    OSError as it comes.
    """
    started = time.monotonic()
    tell: Progress = progress or (lambda fraction, message: None)
    config = read_json(checkpoint / "config.json", "read the checkpoint's configuration")
    files = weight_files(checkpoint)
    if dtype == "base" and not shard_bytes:
        sweep(output)
        place_weights(checkpoint, config, output)
        done, stored = Done("passthrough"), tensors(output)
        copy_config(checkpoint, output)
    else:
        set_threads(threads)
        done, stored = _rewrite(checkpoint, config, output, tell, dtype, shard_bytes, verify)
    if files.kind == "bin":
        done = replace(done, warnings=(PICKLED, *done.warnings))
    digest = base_digest(checkpoint, cache, Meter(0, tell).beat("reading the checkpoint for its digest")) if cache else None
    if done.ledger is not None:
        done.ledger.remove()
    before = (stored_bytes(stored.values()), main_dtype(stored.values()))
    return report_of(done, output, before, started, method="full", ranks=(), scales=(), base_digest=digest)


def _rewrite(
    checkpoint: Path, config: dict[str, Any], output: Path, tell: Progress, dtype: str, shard_bytes: int, verify: str
) -> tuple[Done, dict[str, TensorInfo]]:
    """The weights in another dtype or in other files, if those that are there are not so already; with what was there."""
    states: States = {name: file_state(checkpoint / name) for name in weight_files(checkpoint).names}
    model = _as_safetensors(checkpoint, config, output)
    stored, files = tensors(model), weight_files(model)
    matched = match_none(model, stored, config, dtype)
    rewrite(matched, model, config, dtype, shard_bytes)
    planned = plan(model, files, stored, matched.outputs)
    if planned.changes(files):
        meter = Meter(sum(file.size for file in planned.files), tell)
        origin = Origin(model, "checkpoint", "rewrite the weights", states, checkpoint)
        done = stream([], matched, planned, origin, output, meter, "writing", spared=(CONVERTED,))
        copy_config(checkpoint, output, matched.edits)
        check_written([], matched, model, output, meter, verify)
    else:
        sweep(output, keep=(CONVERTED,))
        place_weights(model, config, output)
        copy_config(checkpoint, output, matched.edits)
        done = Done("passthrough", warnings=tuple(matched.warnings))
    remove_tree(output / CONVERTED)
    return done, stored


def _as_safetensors(checkpoint: Path, config: dict[str, Any], output: Path) -> Path:
    """The folder that holds the checkpoint's weights as safetensors: its own, or one in `output` that they are converted into."""
    if weight_files(checkpoint).kind == "safetensors":
        return checkpoint
    converted = output / CONVERTED
    remove_tree(converted)
    converted.mkdir()
    place_weights(checkpoint, config, converted)
    return converted


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
        raise Permanent(FaultCode.FILE_MISSING, OPERATION, "the file does not exist", "check that the folder is complete", path=path)
    try:
        # Files from before torch 1.6 are no archives and can't be mapped.
        table = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise Permanent(
            FaultCode.UNSAFE_PICKLE,
            OPERATION,
            f"the file holds more than tensors, or is cut short ({said})",
            "save the model with safe_serialization=True; pickled code is never executed",
            path=path,
        ) from None
    tensors = {str(name): value for name, value in table.items() if isinstance(value, torch.Tensor)} if isinstance(table, dict) else {}
    if not tensors:
        cause = "it holds no table of tensors" + (f", but {', '.join(map(str, list(table)[:3]))}" if isinstance(table, dict) else "")
        raise Permanent(FaultCode.NO_TENSORS, OPERATION, cause, "save the model with save_pretrained", path=path)
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
            raise Permanent(FaultCode.BAD_INDEX, OPERATION, cause, "restore the model's files", path=source / name)
        save_file(table, output / target, metadata={"format": "pt"})
        mapping.update(dict.fromkeys(table, target))
    if len(names) > 1:
        size = sum(info.size for name in set(mapping.values()) for info in _headers(output / name))
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(mapping.items()))}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _headers(path: Path) -> list[Any]:
    from handlers.models.files import read_header

    return list(read_header(path).values())
