"""The stage `merge`: from the pinned checkpoint (and its base) to a folder that transformers loads.

Run by `handlers.__main__`. With a base the adapter is merged; without one the checkpoint is a full fine-tune and passes through.
The output holds configuration and weights only; the tokenizer is the pytorch stage's concern. A staging folder that an interrupted
attempt left is gone on with where the merge streams, and emptied first where it does not.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from daemon.contract import StageContext
from daemon.errors import Permanent
from handlers.merge.api import MergeReport, merge_adapter
from handlers.merge.digests import base_digest
from handlers.merge.ledger import sweep
from handlers.merge.passthrough import place_weights
from handlers.model_files import copy_config, main_dtype, parameters, read_json, stored_bytes, tensors
from handlers.progress import Reporter, StageOutput
from handlers.tasks import task_of


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Merge, or pass through; errors as `merge_adapter` raises them."""
    if context.base is None:
        return _pass_through(context)
    if context.checkpoint.method == "full":
        raise Permanent(
            "base-not-wanted",
            "merge the checkpoint",
            "it is a full fine-tune, yet a base was given",
            "leave the base unset for this run",
            path=context.checkpoint.path,
        )
    options = context.work.merge
    report = merge_adapter(
        Path(context.pin),
        Path(context.base),
        Path(context.staging),
        threads=context.limits.threads,
        cache=Path(context.cache),
        progress=reporter.progress,
        resume=True,
        dtype=options.dtype,
        shard_bytes=int(options.max_shard_size or 0),
        verify=options.verify,
        base_values=options.base,
    )
    return StageOutput(
        strategy=report.strategy,
        figures=_figures(report) | {"task": _task(context)},
        warnings=list(report.warnings),
        fallbacks=list(report.fallbacks),
        digests=report.digests,
    )


def _task(context: StageContext) -> str | None:
    """What the merged model is for, where its architecture is one that is known."""
    task = task_of(Path(context.staging))
    return task.name if task else None


def _figures(report: MergeReport) -> dict[str, Any]:
    """The report's figures under the names that other stages and the report read."""
    return {
        "base_bytes": report.base_bytes,
        "parameters": report.parameters,
        "base_dtype": report.base_dtype,
        "output_dtype": report.output_dtype,
        "base_digest": report.base_digest,
        "method": report.method,
        "changed_modules": report.changed_modules,
        "changed_parameters": report.changed_parameters,
        "rank": max(report.ranks, default=None),
        "ranks": list(report.ranks),
        "scale": report.scales[0] if len(report.scales) == 1 else None,
        "scales": list(report.scales),
        "merge_seconds": report.merge_seconds,
        "resumed_files": report.resumed_files,
        "resumed_bytes": report.resumed_bytes,
    }


def _pass_through(context: StageContext) -> StageOutput:
    started = time.monotonic()
    pin, staging = Path(context.pin), Path(context.staging)
    if context.checkpoint.method != "full":
        raise Permanent(
            "base-missing",
            "merge the adapter",
            f"the checkpoint is an adapter ({context.checkpoint.method}) and no base was given",
            "set the base model of this run in the configuration",
            path=context.checkpoint.path,
        )
    config = read_json(pin / "config.json", "read the checkpoint's configuration")
    sweep(staging)
    converted = place_weights(pin, config, staging)
    copy_config(pin, staging)
    written = tensors(staging).values()
    figures = {
        "base_bytes": stored_bytes(written),
        "parameters": parameters(written),
        "base_dtype": main_dtype(written),
        "output_dtype": main_dtype(written),
        "base_digest": base_digest(pin, Path(context.cache)),
        "method": "full",
        "changed_modules": 0,
        "changed_parameters": 0,
        "rank": None,
        "ranks": [],
        "scale": None,
        "scales": [],
        "merge_seconds": round(time.monotonic() - started, 3),
        "resumed_files": 0,
        "resumed_bytes": 0,
    }
    warnings = ["the checkpoint's pickled .bin weights were converted to safetensors"] if converted else []
    if (context.work.merge.dtype, context.work.merge.max_shard_size) != ("base", None):
        warnings.append("merge.dtype and merge.max_shard_size were not applied: a full fine-tune keeps its dtype and its files")
    return StageOutput(strategy="passthrough", figures=figures | {"task": _task(context)}, warnings=warnings)
