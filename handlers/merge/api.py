"""Merging an adapter into its base, as a library: `merge_adapter` chooses between streaming and PEFT, and does it.

Called by the merge stage, by the benchmarks, and by anyone who wants a merge without the daemon. It sets torch's number of threads for
the whole process. The output folder gets configuration and weights, no tokenizer. A streaming merge can be resumed file by file; a merge
by PEFT starts again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.figures import MergeFigures
from daemon.contract.jobs.messages import Fallback
from daemon.contract.jobs.options import MergeOptions
from handlers.merge.adapters.adapter import Adapter, read_adapter
from handlers.merge.adapters.name_mapping import NeedsPeft
from handlers.merge.engine.execute import (
    Execution,
    MergeResult,
    MergeTask,
    Meter,
    Original,
    Progress,
    check_headers,
    collection_paused,
    set_threads,
    stream,
)
from handlers.merge.engine.resume_ledger import clear, file_states
from handlers.merge.plan.output_layout import plan
from handlers.merge.plan.prepare import apply_format, match_all, refuse_base, refuse_peft
from handlers.merge.weights.base_digest import base_digest
from handlers.models.folder import ModelFolder, copy_config, copy_generation
from handlers.models.tasks import task_of_config


@dataclass(frozen=True)
class MergeReport:
    """What a merge did, or what was done with a full fine-tune, which is its own base."""

    strategy: str
    """"streaming", "peft", or "passthrough" for files that were placed as they are."""
    figures: MergeFigures
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    """File → SHA-256 of each weight file, as far as the merge had to compute it to be resumable."""


@dataclass(frozen=True)
class Method:
    """How the checkpoint was trained."""

    name: str
    """PEFT's name, or "full"."""
    ranks: tuple[int, ...] = ()
    """LoRA ranks of the modules, ascending; empty for other methods."""
    scales: tuple[float, ...] = ()
    """Factors of B·A, likewise."""


def merge_adapter(
    adapter: Path,
    base: Path,
    output: Path,
    options: MergeOptions = MergeOptions(),  # noqa: B008 - frozen
    execution: Execution = Execution(),  # noqa: B008 - frozen
    *,
    weight: float = 1.0,
    adapters: Sequence[tuple[Path, float]] = (),
) -> MergeReport:
    """Write base + adapter into the existing, empty folder `output`, as a folder that transformers loads.

    LoRA, DoRA and AdaLoRA on all kinds of layers (fp32, fp16, bf16), and modules saved with them, are streamed in bounded memory, into
    files named and sharded as the base's. Other methods are merged by PEFT with the whole model in memory, and the report's `fallbacks`
    say why. `options` are what `[merge]` of config.toml sets: dtype, size of files, values of the base, closeness of the check.
    `execution` says how it is run: threads, cache, progress, resuming. `adapters` are further plain LoRA adapters, each with a weight,
    which are added along with the first and rounded with it; `weight` is the first one's, which must be plain LoRA too if that is not 1.

    Raises Permanent when adapter and base do not belong together, are damaged, or can't be merged; Retryable when memory is short;
    OSError as it comes.
    """
    started = time.monotonic()
    if not execution.resume:
        _refuse_leftovers(output)
    with collection_paused():
        model = ModelFolder.opened(base, "base")
        states = file_states(model)
        loaded = read_adapter(adapter)
        refuse_base(model)
        meter = Meter(model.file_bytes, execution.report)
        model.check()
        set_threads(execution.threads)
        others = [(read_adapter(path), weight) for path, weight in adapters]
    task = None
    try:
        with collection_paused():
            matched = match_all([(loaded, weight), *others], model, options.base)
            apply_format(matched, model, options)
    except NeedsPeft as reason:
        refuse_peft(adapter, options, str(reason), several=bool(others) or weight != 1)
        clear(output)
        result = _merge_with_peft(loaded, model, output, str(reason), execution.report, options)
    else:
        original = Original(model, states if execution.resume else {})
        with collection_paused():
            planned = plan(model, matched.outputs)
        task = MergeTask(original, model, (loaded, *(other for other, _ in others)), matched, planned, output)
        result = stream(task, meter, execution.verify(options))
    copy_config(model, output, result.edits)
    copy_generation(adapter, output)
    written = ModelFolder(output, "merged model")
    if task is not None and execution.check:
        check_headers(task, written)
    digest = base_digest(model, execution.cache, meter.keep_alive("reading the base for its digest")) if execution.cache else None
    if result.ledger is not None:
        result.ledger.remove()
    return report_of(result, model, written, _method(loaded), started=started, base_digest=digest)


def report_of(
    result: MergeResult, base: ModelFolder, written: ModelFolder, method: Method, *, started: float, base_digest: str | None
) -> MergeReport:
    """Return the report of a merge that began at `started` (of time.monotonic) and whose output is in `written`."""
    ledger = result.ledger
    figures = MergeFigures(
        base_bytes=base.stored_bytes,
        parameters=written.parameters,
        base_dtype=written.main_dtype if base.pickled else base.main_dtype,
        output_dtype=written.main_dtype,
        base_digest=base_digest,
        method=method.name,
        changed_modules=result.changed_modules,
        changed_parameters=result.changed_parameters,
        rank=max(method.ranks, default=None),
        ranks=method.ranks,
        scale=method.scales[0] if len(method.scales) == 1 else None,
        scales=method.scales,
        merge_seconds=round(time.monotonic() - started, 3),
        resumed_files=len(ledger.kept) if ledger else 0,
        resumed_bytes=ledger.kept_bytes if ledger else 0,
        weight_files=len(written.files.names),
        recast_tensors=result.recast_tensors,
        held_share=result.held,
        task=task.name if (task := task_of_config(written.config)) else None,
    )
    return MergeReport(result.strategy, figures, result.fallbacks, result.warnings, ledger.digests if ledger else {})


def _merge_with_peft(
    adapter: Adapter, base: ModelFolder, output: Path, reason: str, progress: Progress, options: MergeOptions
) -> MergeResult:
    from handlers.merge.peft.merge import merge_with_peft
    from handlers.merge.weights.changed import changed_tensors

    progress(0.05, f"merging with PEFT, since {reason}")
    peft = merge_with_peft(adapter, base, output, fill_rows=options.fill_rows)
    fallback = Fallback(wanted="streaming", taken="peft", reason=reason)
    return MergeResult("peft", *changed_tensors(base, ModelFolder(output)), peft.edits, (fallback,), tuple(peft.warnings))


def _method(adapter: Adapter) -> Method:
    if adapter.method not in ("LORA", "ADALORA") or "r" not in adapter.config:
        return Method(adapter.method)
    modules = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in adapter.shapes if ".lora_" in key}
    ranks = {adapter.rank(module) for module in modules}
    return Method(adapter.method, tuple(sorted(ranks)), tuple(sorted({adapter.scale(module) for module in modules})))


def _refuse_leftovers(output: Path) -> None:
    """Raise Permanent when the folder is not empty: what another merge left would be mixed with this one's files."""
    leftovers = sorted(path.name for path in output.iterdir())
    if leftovers:
        cause = f"the output folder is not empty: it holds {leftovers[0]}" + (f" and {len(leftovers) - 1} more" if leftovers[1:] else "")
        raise Permanent(FaultCode.NOT_EMPTY, "merge the adapter", cause, "give an empty folder", path=output)
