"""Carrying out what was matched: the streaming engine after its plan, file by file so that it can be resumed, and the check at its end.

Called by `handlers.merge.api` for an adapter and its base, and by `handlers.merge.full_finetune` for a model that has no adapter. torch is
imported when the work begins.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.errors import Retryable
from daemon.contract.failpoints import point
from daemon.contract.fault_codes import FaultCode
from daemon.contract.messages import Fallback
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.bundle import Bundle
from handlers.merge.engine.resume_ledger import Ledger, States, file_state, purpose
from handlers.merge.plan.matcher import Matched
from handlers.merge.plan.output_layout import Plan

Progress = Callable[[float, str], None]

SPARE = 1
"""Threads beside those that may compute: while one waits for the disk, the others go on."""


@dataclass(frozen=True)
class Origin:
    """The model that the weights come from."""

    folder: Path
    noun: str
    """What errors call it: "base" or "checkpoint"."""
    operation: str
    """What is done, for errors."""
    states: States
    """Those of the files it is made of, before anything of them was read; empty for what can't be resumed."""
    watched: Path
    """Where these files lie: `folder`, unless its own were made of them."""


@dataclass(frozen=True)
class Done:
    """What one way of merging left to tell; `edits` are keys of config.json that have to change."""

    strategy: str
    changed_modules: int = 0
    changed_parameters: int = 0
    edits: dict[str, Any] = field(default_factory=dict)
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()
    ledger: Ledger | None = None
    recast_tensors: int = 0


class Meter:
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


def stream(
    adapters: Sequence[Adapter], matched: Matched, planned: Plan, origin: Origin, output: Path, meter: Meter, doing: str,
    spared: Sequence[str] = (),
) -> Done:  # fmt: skip
    """Write the files of the plan into `output`, those that are whole there already left out.

    `doing` is the verb of its progress; `spared` names entries of `output` that stay, where all others go.

    Raises Permanent for values that can't be written, Retryable when the model's files change meanwhile, OSError as it comes.
    """
    import torch

    from handlers.merge.engine.streaming import StreamingMerge

    ledger = None
    if origin.states:
        made_for = purpose(adapters, [planned.describe(), matched.edits], origin.states)
        ledger = Ledger(output, made_for, planned.names, _checking(meter), spared)
    kept = ledger.kept if ledger else ()
    watch = _watching(origin, planned)

    def finished(name: str) -> None:
        point("merge.shard.written")
        watch(name)
        if ledger is not None:
            ledger.record(name)

    missing = tuple(name for name in planned.names if name not in kept)
    workers = torch.get_num_threads() + SPARE
    StreamingMerge(Bundle(adapters), planned, origin.folder, missing, output, meter.moved(doing), finished, workers).run()
    if planned.index is not None:
        (output / str(planned.index_name)).write_bytes(planned.index)
    elif planned.index_name:
        shutil.copyfile(origin.folder / planned.index_name, output / planned.index_name)
    changed = [one for one in matched.outputs if one.changed]
    return Done(
        "streaming", len(changed), sum(one.elements for one in changed), matched.edits, warnings=tuple(matched.warnings), ledger=ledger,
        recast_tensors=sum(one.recast for one in matched.outputs),
    )  # fmt: skip


def _checking(meter: Meter) -> Callable[[str], Callable[[int], None]]:
    return lambda name: lambda count: meter.add(count, f"checking {name}, which an interrupted attempt left")


def _watching(origin: Origin, planned: Plan) -> Callable[[str], None]:
    """Gives what raises Retryable when a file that a written one was made of is no longer what it was."""
    # A file may hold tensors of other files of the model; then all of them are looked at.
    moved_here = {one.file for file in planned.files for one in file.outputs if one.stored and one.stored.file != one.file}

    def watch(name: str) -> None:
        for one in [name] if name in origin.states and name not in moved_here else origin.states:
            if file_state(origin.watched / one) != origin.states[one]:
                raise Retryable(
                    FaultCode.BASE_CHANGED if origin.noun == "base" else FaultCode.CHECKPOINT_CHANGED,
                    origin.operation,
                    f"the {origin.noun}'s file changed while it was read",
                    f"leave the {origin.noun} alone while it is read",
                    path=origin.watched / one,
                )

    return watch


def check_written(adapters: Sequence[Adapter], matched: Matched, model: Path, output: Path, meter: Meter, how: str) -> None:
    """Permanent when the files in `output` do not hold what they should of `model`; `how` is "sample", "full" or "none"."""
    if how == "none":
        return
    from handlers.merge.engine.check_plan import check

    beat = meter.beat("checking the written weights")
    # What a model without an adapter says about its weights is not ours to refuse.
    check(matched.outputs, Bundle(adapters).tensor, model, output, full=how == "full", beat=beat, flagged=bool(adapters))


def set_threads(threads: int) -> None:
    """Threads of torch's operations in this process, at least one."""
    import torch

    torch.set_num_threads(max(1, threads))
