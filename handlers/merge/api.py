"""Merging an adapter into its base, as a library: `merge_adapter` picks the way and does it.

Called by the merge stage, by the benchmarks, and by whoever wants a merge without the daemon. It sets torch's number
of threads for the whole process. The output folder gets configuration and weights, no tokenizer. A streaming merge can be
resumed file by file; a merge by PEFT begins again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.messages import Fallback
from handlers.merge.adapters.adapter import Adapter, read_adapter
from handlers.merge.adapters.name_mapping import NeedsPeft
from handlers.merge.engine.execute import Done, Meter, Origin, Progress, check_written, set_threads, stream
from handlers.merge.engine.resume_ledger import States, file_state, sweep
from handlers.merge.plan.output_layout import plan
from handlers.merge.plan.prepare import match_all, refuse_base, refuse_peft, rewrite
from handlers.merge.weights.base_digest import base_digest
from handlers.models.files import copy_config, main_dtype, parameters, read_json, stored_bytes, tensors, weight_files


@dataclass(frozen=True)
class MergeReport:
    """What a merge did, or what became of a full fine-tune, which is its own base. Sizes are bytes, times seconds."""

    strategy: str
    """"streaming", "peft", or "passthrough" for files that were placed as they are."""
    method: str
    base_bytes: int
    """Bytes of the base's tensors (`.bin`: of its files)."""
    parameters: int
    """Elements of all tensors of the output."""
    base_dtype: str
    output_dtype: str
    changed_modules: int
    """Linear layers that got a delta; with "peft", tensors that differ from the base's."""
    changed_parameters: int
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    merge_seconds: float
    base_digest: str | None = None
    """SHA-256 of the base; None when no cache folder was given."""
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    resumed_files: int = 0
    """Weight files taken over, verified, from an interrupted merge."""
    resumed_bytes: int = 0
    weight_files: int = 0
    """Files of weights in the output."""
    recast_tensors: int = 0
    """Tensors that were written in another dtype than they were stored in; 0 with "peft"."""
    digests: dict[str, str] = field(default_factory=dict)
    """File → SHA-256 of each weight file, as far as the merge had to know it to be able to resume."""


def _merge_with_peft(adapter: Adapter, base: Path, config: dict[str, Any], output: Path, reason: str, progress: Progress) -> Done:
    from handlers.merge.peft import changed_tensors, merge_with_peft

    progress(0.05, f"merging with PEFT, since {reason}")
    peft = merge_with_peft(adapter, base, config, output)
    fallback = Fallback(wanted="streaming", taken="peft", reason=reason)
    return Done("peft", *changed_tensors(base, output), peft.edits, (fallback,), tuple(peft.warnings))


def _ranks(adapter: Adapter) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranks and scales of a LoRA adapter by its modules, for the report; empty for other methods."""
    from handlers.merge.adapters.adapter import rank_of, scale_of

    if adapter.method not in ("LORA", "ADALORA") or "r" not in adapter.config:
        return (), ()
    modules = {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in adapter.shapes if ".lora_" in key}
    ranks = {rank_of(adapter.config, module) for module in modules}
    return tuple(sorted(ranks)), tuple(sorted({scale_of(adapter.config, module) for module in modules}))


def merge_adapter(
    adapter: Path, base: Path, output: Path, *, threads: int = 1, cache: Path | None = None, progress: Progress | None = None,
    resume: bool = False, adapters: Sequence[tuple[Path, float]] = (),
    dtype: str = "base", shard_bytes: int = 0, verify: str = "sample",
    base_values: str = "original",
) -> MergeReport:  # fmt: skip
    """Write base + adapter into the existing, empty folder `output`, as a folder that transformers loads.

    LoRA, DoRA and AdaLoRA on every kind of layer (fp32, fp16, bf16) and what they save along stream in bounded memory, into files named
    and sharded as the base's; other methods go through PEFT with the whole model in memory, and the report's `fallbacks` say why.
    `adapters` are further plain LoRA adapters, each with a weight, added along with the first and rounded with it. `progress` gets
    fractions of 0 to 1 and a message, from several threads, one at a time; what it raises ends the merge. With `cache`, a folder, the
    base's digest is computed and remembered there. With `resume`, each finished weight file is made durable and noted in `output`;
    called again with the same arguments after an interruption, the merge keeps those that are whole and removes whatever else lies there.
    `dtype` ("float32", "bfloat16", "float16") and `shard_bytes` write the model in another dtype, in files of that size at most.
    `base_values` "dequantized" or "dequantized-double" takes the base as a QLoRA training saw it: quantized to nf4 and back.
    The written files are read back and held against base and adapter: `verify` is "sample", "full" or "none".

    Raises Permanent when adapter and base do not belong together, are damaged, or can't be merged; Retryable when memory is short;
    OSError as it comes.
    """
    started = time.monotonic()
    tell: Progress = progress or (lambda fraction, message: None)
    if not resume:
        _refuse_leftovers(output)
    config = read_json(base / "config.json", "read the base's configuration")
    files = weight_files(base)
    states: States = {name: file_state(base / name) for name in files.names}
    loaded = read_adapter(adapter)
    refuse_base(config, base)
    headers = tensors(base) if files.kind == "safetensors" else {}
    ranks, scales = _ranks(loaded)
    meter = Meter(_sizes(base, files.names), tell)
    set_threads(threads)
    others = [(read_adapter(path), weight) for path, weight in adapters]
    try:
        matched = match_all([(loaded, 1.0), *others], base, headers, config, base_values)
        rewrite(matched, base, config, dtype, shard_bytes)
    except NeedsPeft as reason:
        refuse_peft(adapter, bool(others), (dtype, shard_bytes, base_values) != ("base", 0, "original"), str(reason))
        sweep(output)
        done = _merge_with_peft(loaded, base, config, output, str(reason), tell)
    else:
        planned = plan(base, files, headers, matched.outputs)
        origin = Origin(base, "base", "merge the adapter", states if resume else {}, base)
        done = stream([loaded, *(one for one, _ in others)], matched, planned, origin, output, meter, "merging")
    copy_config(base, output, done.edits)
    if done.strategy == "streaming":
        check_written([loaded, *(one for one, _ in others)], matched, base, output, meter, verify)
    digest = base_digest(base, cache, meter.beat("reading the base for its digest")) if cache else None
    if done.ledger is not None:
        done.ledger.remove()
    before = (stored_bytes(headers.values()), main_dtype(headers.values())) if headers else (_sizes(base, files.names), None)
    return report_of(done, output, before, started, method=loaded.method, ranks=ranks, scales=scales, base_digest=digest)


def _sizes(folder: Path, names: Sequence[str]) -> int:
    return sum((folder / name).stat().st_size for name in names)


def report_of(done: Done, output: Path, before: tuple[int, str | None], started: float, **known: Any) -> MergeReport:
    """The report of what lies in `output`; `before` is the base's bytes and dtype (None: the output's), `known` what else is known."""
    written = tensors(output).values()
    return MergeReport(
        strategy=done.strategy,
        base_bytes=before[0],
        parameters=parameters(written),
        base_dtype=before[1] or main_dtype(written),
        output_dtype=main_dtype(written),
        changed_modules=done.changed_modules,
        changed_parameters=done.changed_parameters,
        merge_seconds=round(time.monotonic() - started, 3),
        fallbacks=done.fallbacks,
        warnings=done.warnings,
        resumed_files=len(done.ledger.kept) if done.ledger else 0,
        resumed_bytes=done.ledger.kept_bytes if done.ledger else 0,
        weight_files=len(weight_files(output).names),
        recast_tensors=done.recast_tensors,
        digests=done.ledger.digests if done.ledger else {},
        **known,
    )


def _refuse_leftovers(output: Path) -> None:
    """Permanent when the folder holds anything: what came from another merge would be mixed with this one's."""
    found = sorted(path.name for path in output.iterdir())
    if found:
        cause = f"the output folder is not empty: it holds {found[0]}" + (f" and {len(found) - 1} more" if found[1:] else "")
        raise Permanent(FaultCode.OUTPUT_NOT_EMPTY, "merge the adapter", cause, "give an empty folder", path=output)
