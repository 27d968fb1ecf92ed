"""Merging an adapter into its base, as a library: `merge_adapter` picks the way and does it.

Called by the merge stage, by the benchmarks, and by whoever wants a merge without the daemon. It sets torch's number
of threads for the whole process. The output folder gets configuration and weights, no tokenizer. A streaming merge can be
resumed file by file; a merge by PEFT begins again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract import Fallback
from daemon.errors import Permanent, Retryable
from daemon.faults import point
from handlers.merge.adapter import Adapter, read_adapter
from handlers.merge.digests import base_digest
from handlers.merge.layout import plan
from handlers.merge.ledger import Ledger, States, file_state, purpose, sweep
from handlers.merge.match import Matched
from handlers.merge.names import NeedsPeft
from handlers.merge.planning import match_all, refuse_base, refuse_peft, rewrite
from handlers.merge.several import Bundle
from handlers.model_files import WeightFiles, copy_config, main_dtype, parameters, read_json, stored_bytes, tensors, weight_files

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. Sizes are bytes, times seconds."""

    strategy: str
    """"streaming" or "peft"."""
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
    digests: dict[str, str] = field(default_factory=dict)
    """File → SHA-256 of each weight file, as far as the merge had to know it to be able to resume."""


@dataclass(frozen=True)
class _Done:
    """What one way of merging left to tell; `edits` are keys of config.json that have to change."""

    strategy: str
    changed_modules: int
    changed_parameters: int
    edits: dict[str, Any] = field(default_factory=dict)
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()
    ledger: Ledger | None = None


class _Meter:
    """Bytes done of all, told as a fraction; called from several threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total or 1
        self._done = 0
        self._lock = threading.Lock()
        self._progress = progress

    def add(self, count: int, message: str) -> None:
        """`count` bytes more are done."""
        with self._lock:
            self._done += count
            self._progress(min(self._done / self._total, 1.0), message)

    def moved(self, doing: str) -> Callable[[int, str], None]:
        """For the engine, which tells bytes and what they belong to."""
        return lambda count, name: self.add(count, f"{doing} {name}")

    def beat(self, message: str) -> Callable[[int], None]:
        """For work that moves nothing on: says that it still goes on."""
        return lambda count: self.add(0, message)


def _stream(
    adapters: Sequence[Adapter],
    matched: Matched,
    base: Path,
    files: WeightFiles,
    headers: dict[str, Any],
    output: Path,
    meter: _Meter,
    states: States,
) -> _Done:
    """Merge file by file; with `states`, those of the base's files before anything of them was read, so that it can be resumed."""
    import torch

    from handlers.merge.streaming import StreamingMerge

    planned = plan(base, files, headers, matched.outputs)
    ledger = (
        Ledger(output, purpose(adapters, [planned.describe(), matched.edits], states), planned.names, _checking(meter)) if states else None
    )
    kept = ledger.kept if ledger else ()
    # A file may hold tensors of other files of the base; then all of them are looked at.
    moved_here = {one.file for file in planned.files for one in file.outputs if one.stored and one.stored.file != one.file}

    def finished(name: str) -> None:
        point("merge.shard.written")
        for one in [name] if name in states and name not in moved_here else states:
            if file_state(base / one) != states[one]:
                raise Retryable(
                    "base-changed",
                    "merge the adapter",
                    "the base's file changed while it was read",
                    "leave the base alone while it is merged",
                    path=base / one,
                )
        if ledger is not None:
            ledger.record(name)

    missing = tuple(name for name in planned.names if name not in kept)
    # One thread more than computes: while one waits for the disk, the others go on.
    workers = torch.get_num_threads() + 1
    StreamingMerge(
        Bundle(adapters), planned, base, missing, output, lambda count, name: meter.add(count, f"merging {name}"), finished, workers
    ).run()
    if planned.index is not None:
        (output / str(planned.index_name)).write_bytes(planned.index)
    elif planned.index_name:
        shutil.copyfile(base / planned.index_name, output / planned.index_name)
    changed = [one for one in matched.outputs if one.changed]
    return _Done(
        "streaming", len(changed), sum(one.elements for one in changed), matched.edits, warnings=tuple(matched.warnings), ledger=ledger
    )


def _checking(meter: _Meter) -> Callable[[str], Callable[[int], None]]:
    return lambda name: lambda count: meter.add(count, f"checking {name}, which an interrupted merge left")


def _merge_with_peft(adapter: Adapter, base: Path, config: dict[str, Any], output: Path, reason: str, progress: Progress) -> _Done:
    from handlers.merge.with_peft import changed_tensors, merge_with_peft

    progress(0.05, f"merging with PEFT, since {reason}")
    peft = merge_with_peft(adapter, base, config, output)
    fallback = Fallback(wanted="streaming", taken="peft", reason=reason)
    return _Done("peft", *changed_tensors(base, output), peft.edits, (fallback,), tuple(peft.warnings))


def _ranks(adapter: Adapter) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ranks and scales of a LoRA adapter by its modules, for the report; empty for other methods."""
    from handlers.merge.adapter import rank_of, scale_of

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
    meter = _Meter(sum((base / name).stat().st_size for name in files.names), tell)
    _set_threads(threads)
    others = [(read_adapter(path), weight) for path, weight in adapters]
    try:
        matched = match_all([(loaded, 1.0), *others], base, headers, config, base_values)
        rewrite(matched, base, config, dtype, shard_bytes)
    except NeedsPeft as reason:
        refuse_peft(adapter, bool(others), (dtype, shard_bytes, base_values) != ("base", 0, "original"), str(reason))
        sweep(output)
        done = _merge_with_peft(loaded, base, config, output, str(reason), tell)
    else:
        done = _stream([loaded, *(one for one, _ in others)], matched, base, files, headers, output, meter, states if resume else {})
    copy_config(base, output, done.edits)
    if done.strategy == "streaming":
        _verify([loaded, *(one for one, _ in others)], matched, base, output, meter, verify)
    written = tensors(output).values()
    digest = base_digest(base, cache, meter.beat("reading the base for its digest")) if cache else None
    if done.ledger is not None:
        done.ledger.remove()
    return MergeReport(
        strategy=done.strategy,
        method=loaded.method,
        base_bytes=stored_bytes(headers.values()) if headers else sum((base / name).stat().st_size for name in files.names),
        parameters=parameters(written),
        base_dtype=main_dtype(headers.values()) if headers else main_dtype(written),
        output_dtype=main_dtype(written),
        changed_modules=done.changed_modules,
        changed_parameters=done.changed_parameters,
        ranks=ranks,
        scales=scales,
        merge_seconds=round(time.monotonic() - started, 3),
        base_digest=digest,
        fallbacks=done.fallbacks,
        warnings=done.warnings,
        resumed_files=len(done.ledger.kept) if done.ledger else 0,
        resumed_bytes=done.ledger.kept_bytes if done.ledger else 0,
        digests=done.ledger.digests if done.ledger else {},
    )


def _refuse_leftovers(output: Path) -> None:
    """Permanent when the folder holds anything: what came from another merge would be mixed with this one's."""
    found = sorted(path.name for path in output.iterdir())
    if found:
        cause = f"the output folder is not empty: it holds {found[0]}" + (f" and {len(found) - 1} more" if found[1:] else "")
        raise Permanent("output-not-empty", "merge the adapter", cause, "give an empty folder", path=output)


def _verify(adapters: Sequence[Adapter], matched: Matched, base: Path, output: Path, meter: _Meter, how: str) -> None:
    """Permanent when the written files do not hold what they should."""
    if how == "none":
        return
    from handlers.merge.checked import check

    beat = meter.beat("checking the merged weights")
    check(matched.outputs, Bundle(adapters).tensor, base, output, full=how == "full", beat=beat)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(max(1, threads))
