"""A full fine-tune has no adapter: its weights are placed as they are, or streamed into the dtype and the files that are asked for.

Called by the merge stage. What is asked for and there already is not done: such weights are placed too. `.bin` weights are turned
into safetensors first, inside the output folder where they have to be streamed after that. Streaming takes the memory of a merge that
streams, and goes on at the file like one; the conversion of `.bin` weights begins again.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from daemon.durable import remove_tree
from handlers.merge.api import MergeReport, report_of
from handlers.merge.digests import base_digest
from handlers.merge.layout import plan
from handlers.merge.ledger import States, file_state, sweep
from handlers.merge.passthrough import place_weights
from handlers.merge.planning import match_none, rewrite
from handlers.merge.writing import Done, Meter, Origin, Progress, check_written, set_threads, stream
from handlers.model_files import TensorInfo, copy_config, main_dtype, read_json, stored_bytes, tensors, weight_files

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
