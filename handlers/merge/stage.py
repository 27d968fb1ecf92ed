"""The stage `merge`: from the pinned checkpoint (and its base) to a folder that transformers loads.

Run by `handlers.__main__`. With a base the adapter is merged; without one the checkpoint is a full fine-tune and is taken over.
The output holds configuration and weights only; the tokenizer is the pytorch stage's concern. A staging folder that an interrupted
attempt left is gone on with where weights are streamed, and emptied first where they are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.merge.api import MergeReport, merge_adapter
from handlers.merge.full_finetune import take_over
from handlers.models.tasks import task_of


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Merge the adapter, or take over the full fine-tune; errors as `merge_adapter` and `take_over` raise them."""
    _check_base(context)
    wishes = context.work.merge
    options: dict[str, Any] = {
        "threads": context.limits.threads, "cache": Path(context.cache), "progress": reporter.progress, "dtype": wishes.dtype,
        "shard_bytes": int(wishes.max_shard_size or 0), "verify": wishes.verify,
    }  # fmt: skip
    pin, staging = Path(context.pin), Path(context.staging)
    if context.base is None:
        report = take_over(pin, staging, **options)
    else:
        report = merge_adapter(pin, Path(context.base), staging, resume=True, base_values=wishes.base, **options)
    return StageOutput(
        strategy=report.strategy,
        figures=_figures(report) | {"task": _task(context)},
        warnings=list(report.warnings),
        fallbacks=list(report.fallbacks),
        digests=report.digests,
    )


def _check_base(context: StageContext) -> None:
    """Permanent when a full fine-tune was given a base, or an adapter none."""
    full = context.checkpoint.method == "full"
    if full and context.base is not None:
        raise Permanent(
            FaultCode.BASE_NOT_WANTED,
            "merge the checkpoint",
            "it is a full fine-tune, yet a base was given",
            "leave the base unset for this run",
            path=context.checkpoint.path,
        )
    if not full and context.base is None:
        raise Permanent(
            FaultCode.BASE_MISSING,
            "merge the adapter",
            f"the checkpoint is an adapter ({context.checkpoint.method}) and no base was given",
            "set the base model of this run in the configuration",
            path=context.checkpoint.path,
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
        "weight_files": report.weight_files,
        "recast_tensors": report.recast_tensors,
    }
