"""Merging an adapter into its base, as a library: `merge_adapter` picks the way and does it.

Called by the merge stage, by the benchmarks, and by whoever wants a merge without the daemon. It sets torch's number
of threads for the whole process. The output folder gets configuration and weights, no tokenizer.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract import Fallback
from daemon.errors import Permanent
from handlers.merge.adapter import Adapter, read_adapter
from handlers.merge.digests import base_digest
from handlers.merge.match import Delta, NeedsPeft, match
from handlers.model_files import WeightFiles, copy_config, main_dtype, parameters, read_json, setting, stored_bytes, tensors, weight_files

Progress = Callable[[float, str], None]
UNMERGEABLE_BASES = ("gptq", "awq")


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


@dataclass(frozen=True)
class _Done:
    """What one way of merging left to tell; `edits` are keys of config.json that have to change."""

    strategy: str
    changed_modules: int
    changed_parameters: int
    edits: dict[str, Any] = field(default_factory=dict)
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()


def _refuse_base(config: dict[str, Any], base: Path) -> None:
    """Permanent for a quantized base whose weights can't be brought back."""
    quantization = setting(config, "quantization_config")
    if not quantization:
        return
    method = str(quantization.get("quant_method") or ("bitsandbytes" if "load_in_4bit" in quantization else "unknown"))
    if method != "bitsandbytes":
        known = "its packed weights can't take a delta" if method in UNMERGEABLE_BASES else "ckptd can't dequantize it"
        raise Permanent(
            "quantized-base",
            "merge the adapter",
            f"the base is quantized with {method}: {known}",
            "set the base to the original model in 16 bits that the quantized one was made of",
            path=base,
        )


def _stream(adapter: Adapter, deltas: list[Delta], base: Path, files: WeightFiles, output: Path, progress: Progress) -> None:
    from handlers.merge.streaming import StreamingMerge

    total = sum((base / name).stat().st_size for name in files.names) or 1
    done = 0
    lock = threading.Lock()

    def moved(count: int, name: str) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done / total, f"merging {name}")

    if files.index:
        shutil.copyfile(base / files.index, output / files.index)
    StreamingMerge(adapter, deltas, base, files.names, output, moved).run()


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
    adapter: Path, base: Path, output: Path, *, threads: int = 1, cache: Path | None = None, progress: Progress | None = None
) -> MergeReport:
    """Write base + adapter into the existing, empty folder `output`, as a folder that transformers loads.

    Plain LoRA on linear layers (fp32, fp16, bf16) streams in bounded memory, into files named and sharded as the base's; anything else
    goes through PEFT with the whole model in memory, and the report's `fallbacks` say why. `progress` gets fractions of
    0 to 1 and a message, from several threads, one at a time. With `cache`, a folder, the base's digest is computed and remembered there.

    Raises Permanent when adapter and base do not belong together, are damaged, or can't be merged; Retryable when memory is short;
    OSError as it comes.
    """
    started = time.monotonic()
    tell: Progress = progress or (lambda fraction, message: None)
    config = read_json(base / "config.json", "read the base's configuration")
    files = weight_files(base)
    loaded = read_adapter(adapter)
    _refuse_base(config, base)
    headers = tensors(base) if files.kind == "safetensors" else {}
    ranks, scales = _ranks(loaded)
    _set_threads(threads)
    try:
        deltas = _plan(loaded, base, headers, config)
    except NeedsPeft as reason:
        done = _merge_with_peft(loaded, base, config, output, str(reason), tell)
    else:
        _stream(loaded, deltas, base, files, output, tell)
        done = _Done("streaming", len(deltas), sum(delta.info.elements for delta in deltas))
    copy_config(base, output, done.edits)
    written = tensors(output).values()
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
        base_digest=base_digest(base, cache) if cache else None,
        fallbacks=done.fallbacks,
        warnings=done.warnings,
    )


def _plan(adapter: Adapter, base: Path, headers: dict[str, Any], config: dict[str, Any]) -> list[Delta]:
    if setting(config, "quantization_config"):
        raise NeedsPeft("the base is stored quantized and has to be dequantized first")
    if not headers:
        raise NeedsPeft("the base's weights are pickled .bin files")
    return match(adapter, base, headers, config)


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(max(1, threads))
