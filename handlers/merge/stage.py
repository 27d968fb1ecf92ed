"""The stage `merge`: from the pinned checkpoint (and its base) to a folder that transformers loads.

Run by `handlers.__main__`. With a base the adapter is merged; without one the checkpoint is a full fine-tune and is taken over. The output
holds configuration and weights, and of a sentence-transformers model its modules; the pytorch stage adds the tokenizer. Where weights
are streamed, the files that an interrupted attempt has finished in the staging folder are kept; otherwise the folder is emptied first.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.merge import beside, sentence_modules
from handlers.merge.api import merge_adapter
from handlers.merge.engine.execute import Execution
from handlers.merge.full_finetune import take_over
from handlers.texts.rendering import ModelFiles
from handlers.texts.tokenizer_trial import try_tokenizer


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Merge the adapter, or take over the full fine-tune; errors as `merge_adapter`, `take_over`, `beside.compare` and
    `try_tokenizer` raise them."""
    _check_base(context)
    with ThreadPoolExecutor(1) as beside_the_merge:
        trial = beside_the_merge.submit(_try_tokenizer, context)
        output = _merged(context, reporter)
        trial.result()
    return output


def _try_tokenizer(context: StageContext) -> None:
    try:
        folder = ModelFiles.of_job(context).tokenizer
    except CkptdError:
        return  # what needs its files says what is wrong with them
    try_tokenizer(folder)


def _merged(context: StageContext, reporter: Reporter) -> StageOutput:
    execution = Execution(context.limits.threads, Path(context.cache), reporter.progress, resume=True)
    pin, staging, options = Path(context.pin), Path(context.staging), context.work.merge
    warnings: list[str] = []
    if context.base is None:
        report = take_over(pin, staging, options, execution)
    else:
        others = [(folder, addition.weight) for folder, addition in context.additions]
        try:
            report = merge_adapter(pin, Path(context.base), staging, options, execution, weight=context.checkpoint.weight, adapters=others)
        except Permanent as error:
            raise _of_addition(context, error) from error
        if not context.additions and context.checkpoint.weight == 1:
            checkpoint, base = Path(context.checkpoint.path), Path(context.base)
            warnings = beside.compare(pin, checkpoint, base, staging, lambda name: reporter.progress(1.0, f"comparing {name}"))
    figures, module_warnings = sentence_modules.take_along(pin, Path(context.base) if context.base else None, staging, report.figures)
    return StageOutput(
        strategy=report.strategy,
        figures=figures.model_dump(mode="json"),
        warnings=[*report.warnings, *warnings, *module_warnings],
        fallbacks=list(report.fallbacks),
        digests=report.digests,
    )


def _of_addition(context: StageContext, error: Permanent) -> Permanent:
    """Return the error with an addition's own path, by which people know it, in place of its pin's."""
    fault = error.fault
    for folder, addition in context.additions:
        if fault.path is not None and Path(fault.path).is_relative_to(folder):
            return Permanent(
                **{**fault.model_dump(), "path": os.path.join(addition.path, os.path.relpath(fault.path, folder)).removesuffix("/.")}
            )
    return error


def _check_base(context: StageContext) -> None:
    """Raise Permanent when a full fine-tune was given a base, or an adapter none."""
    full = context.checkpoint.method == "full"
    if full and context.base is not None:
        raise Permanent(
            FaultCode.BASE_NOT_WANTED,
            "merge the checkpoint",
            "it is a full fine-tune, but a base was given",
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
