"""A full fine-tune has no adapter: its weights are placed as they are, or streamed into another dtype or other files.

Called by the merge stage. Only weights and their index are taken; what else a training leaves (optimizer, random states, arguments) stays
behind. Weights that already are as the options ask are placed too. The pin's files are never rewritten; a file of which another hard link
exists (perhaps the trainer's own) is copied, since somebody may rewrite it in place. `.bin` weights are converted to safetensors first, one
file at a time, inside the output folder where they have to be streamed afterwards. Streaming needs the memory of a streaming merge and is
resumed file by file like one; the conversion of `.bin` weights starts again.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.contract.disk.files import remove_tree
from daemon.contract.disk.placing import duplicate, place
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.options import MergeOptions
from handlers.merge.api import MergeReport, Method, report_of
from handlers.merge.engine.execute import Execution, MergeResult, MergeTask, Meter, Original, check_headers, set_threads, stream
from handlers.merge.engine.resume_ledger import clear, file_states
from handlers.merge.plan.output_layout import plan
from handlers.merge.plan.prepare import apply_format, match_none
from handlers.merge.weights.base_digest import base_digest
from handlers.merge.weights.pickled import read_pickle
from handlers.models.folder import INDEX, SINGLE, ModelFolder, copy_config

if TYPE_CHECKING:
    import torch

CONVERTED = ".converted"
"""Folder in the output for the converted model, until its weights have been streamed."""
OPERATION = "convert the weights to safetensors"
PICKLED = "the checkpoint's pickled .bin weights were converted to safetensors"


def take_over(checkpoint: Path, output: Path, options: MergeOptions, execution: Execution) -> MergeReport:
    """Bring configuration and weights of the full fine-tune in `checkpoint` into the existing folder `output`, and remove all else from it.

    `options` and `execution` mean what they mean for `merge_adapter`; a call with the same ones after an interruption always resumes, and
    keeps the weight files that were completed.

    Raises Permanent for damaged weights and for values that the dtype can't hold; Retryable when the checkpoint changes meanwhile;
    OSError as it comes.
    """
    started = time.monotonic()
    model = ModelFolder.opened(checkpoint, "checkpoint")
    if options.dtype == "base" and not options.max_shard_size:
        clear(output)
        place_weights(model, output)
        copy_config(model, output)
        result, safetensors = MergeResult("passthrough"), None
    else:
        set_threads(execution.threads)
        result, safetensors = _rewrite(model, output, options, execution)
    if model.pickled:
        result = replace(result, warnings=(PICKLED, *result.warnings))
    meter = Meter(0, execution.report)
    digest = base_digest(model, execution.cache, meter.keep_alive("reading the checkpoint for its digest")) if execution.cache else None
    if result.ledger is not None:
        result.ledger.remove()
    written = ModelFolder(output, "merged model")
    return report_of(result, safetensors or written, written, Method("full"), started=started, base_digest=digest)


def _rewrite(checkpoint: ModelFolder, output: Path, options: MergeOptions, execution: Execution) -> tuple[MergeResult, ModelFolder]:
    """The weights in another dtype or in other files, unless they are so already; and the safetensors model from which they were taken."""
    original = Original(checkpoint, file_states(checkpoint))
    model = _as_safetensors(checkpoint, output)
    matched = match_none(model, options.dtype)
    apply_format(matched, model, options)
    planned = plan(model, matched.outputs)
    if planned.changes(model):
        meter = Meter(sum(file.size for file in planned.files), execution.report)
        task = MergeTask(original, model, (), matched, planned, output, keep=(CONVERTED,))
        result = stream(task, meter, execution.verify(options))
        copy_config(checkpoint, output, matched.edits)
        if execution.check:
            check_headers(task, ModelFolder(output))
    else:
        clear(output, keep=(CONVERTED,))
        place_weights(model, output)
        copy_config(checkpoint, output, matched.edits)
        result = MergeResult("passthrough", warnings=tuple(matched.warnings))
    remove_tree(output / CONVERTED)
    return result, model


def _as_safetensors(checkpoint: ModelFolder, output: Path) -> ModelFolder:
    """Return the checkpoint, or one in `output` that is converted from it."""
    if not checkpoint.pickled:
        return checkpoint
    converted = output / CONVERTED
    remove_tree(converted)
    converted.mkdir()
    copy_config(checkpoint, converted)
    place_weights(checkpoint, converted)
    model = ModelFolder(converted, checkpoint.noun)
    model.check()  # so that the headers are known when the folder has been removed
    return model


def _place_or_copy(source: Path, target: Path) -> None:
    """Bring the contents of `source` to `target`: by a hard link only where no other link to the file exists."""
    real = Path(os.path.realpath(source))
    if real.stat().st_nlink == 1:
        place(real, target)
    else:
        duplicate(real, target)


def place_weights(model: ModelFolder, output: Path) -> None:
    """Bring the model's weights into `output`, converted to safetensors if they are `.bin` files.

    Permanent when they are cut short, don't fit their index, or hold more than tensors.
    """
    if model.pickled:
        _convert(model, output)
        return
    model.check()
    for name in model.weight_names:
        _place_or_copy(model.path / name, output / name)


def _unpickle(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a `.bin` file by name."""
    import torch

    table = read_pickle(path, OPERATION)
    tensors = {str(name): value for name, value in table.items() if isinstance(value, torch.Tensor)} if isinstance(table, dict) else {}
    if not tensors:
        cause = "it holds no table of tensors" + (f", but {', '.join(map(str, list(table)[:3]))}" if isinstance(table, dict) else "")
        raise Permanent(FaultCode.NO_TENSORS, OPERATION, cause, "save the model with save_pretrained", path=path)
    return tensors


def _unshared(table: dict[str, torch.Tensor], tied: bool) -> dict[str, torch.Tensor]:
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


def _convert(model: ModelFolder, output: Path) -> None:
    from safetensors.torch import save_file

    # Where config.json does not say it the model's class decides; a head too many does no harm, a missing one does.
    tied = model.setting("tie_word_embeddings") is True
    names, mapping, size = model.files.names, dict[str, str](), 0
    for name in names:
        target = SINGLE if len(names) == 1 else name.replace("pytorch_model", "model", 1).removesuffix(".bin") + ".safetensors"
        table = _unshared(_unpickle(model.path / name), tied)
        if twice := sorted(table.keys() & mapping.keys()):
            cause = f"{twice[0]} is in two files"
            raise Permanent(FaultCode.BAD_INDEX, OPERATION, cause, "restore the model's files", path=model.path / name)
        save_file(table, output / target, metadata={"format": "pt"})
        mapping.update(dict.fromkeys(table, target))
        size += sum(value.numel() * value.element_size() for value in table.values())
    if len(names) > 1:
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(mapping.items()))}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
