"""Executing a merge: the streaming engine file by file, with what is needed to resume it, and the check of the written files.

Called by `handlers.merge.api` for an adapter and its base, and by `handlers.merge.full_finetune` for a model without an adapter. torch is
imported when the work begins.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.errors import Retryable
from daemon.contract.failpoints import point
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.bundle import Bundle
from handlers.merge.engine.resume_ledger import Ledger, States, file_state, purpose
from handlers.merge.plan.matcher import Matched
from handlers.merge.plan.output_layout import Plan
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder

Progress = Callable[[float, str], None]
"""Called with the fraction of the work that is done, 0 to 1, and a message."""

SPARE = 1
"""Threads beside those that may compute: while one waits for the disk, the others go on."""


@dataclass(frozen=True)
class Execution:
    """How a merge is run. Nothing of it changes the merged files."""

    threads: int = 1
    """Threads that compute."""
    cache: Path | None = None
    """Folder in which digests of bases are kept between merges; None leaves the base's digest out."""
    progress: Progress | None = None
    """Is called by several threads, one at a time; an exception that it raises ends the merge."""
    resume: bool = False
    """Keep the weight files that an interrupted merge with the same arguments has finished; remove all else from the output folder."""
    check: bool = True
    """Read the written files back and compare them with base and adapter, as closely as `MergeOptions.verify` says."""

    @property
    def report(self) -> Progress:
        """`progress`, or a function that does nothing."""
        return self.progress or (lambda fraction, message: None)


@dataclass(frozen=True)
class Original:
    """The model as it was given, whose files must not change while they are read."""

    model: ModelFolder
    states: States
    """Of its weight files before anything was read; empty for a merge that is not resumed."""


@dataclass(frozen=True)
class MergeTask:
    """What is merged, and where it is written."""

    original: Original
    model: ModelFolder
    """The model whose weights are read: the original, or one that was converted from it."""
    adapters: tuple[Adapter, ...]
    """Empty for a model without an adapter."""
    matched: Matched
    plan: Plan
    output: Path
    """An existing folder."""
    keep: tuple[str, ...] = ()
    """Entries of `output` that stay; all others are removed."""

    @property
    def operation(self) -> str:
        """What is done, for errors."""
        return "merge the adapter" if self.adapters else "rewrite the weights"

    @property
    def verb(self) -> str:
        """What is done, for progress."""
        return "merging" if self.adapters else "writing"


@dataclass(frozen=True)
class MergeResult:
    """What one way of merging did."""

    strategy: str
    changed_modules: int = 0
    changed_parameters: int = 0
    edits: Edits = field(default_factory=dict)
    """Keys of config.json that have to change; None removes one."""
    fallbacks: tuple[Fallback, ...] = ()
    warnings: tuple[str, ...] = ()
    ledger: Ledger | None = None
    recast_tensors: int = 0


class Meter:
    """Turns bytes that are done into a fraction of all. May be called by several threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total or 1
        self._done = 0
        self._lock = threading.Lock()
        self._progress = progress

    def add(self, count: int, message: str) -> None:
        """`count` more bytes are done."""
        with self._lock:
            self._done += count
            self._progress(min(self._done / self._total, 1.0), message)

    def keep_alive(self, message: str) -> Callable[[int], None]:
        """A callback for work that is not part of the total: it reports the message and leaves the fraction as it is."""
        return lambda count: self.add(0, message)


class _Observer:
    """Reports the engine's progress, and records each finished file."""

    def __init__(self, task: MergeTask, meter: Meter, ledger: Ledger | None) -> None:
        self._task, self._meter, self._ledger = task, meter, ledger
        # A file may hold tensors of other files of the model; then all of them are checked.
        files = task.plan.files
        self._mixed = {one.file for file in files for one in file.outputs if one.stored and one.stored.file != one.file}

    def moved(self, count: int, name: str) -> None:
        """As Observer says."""
        self._meter.add(count, f"{self._task.verb} {name}")

    def finished(self, name: str) -> None:
        """As Observer says. Retryable when a file of the model of which it was made has changed."""
        point("merge.shard.written")
        self._check_unchanged(name)
        if self._ledger is not None:
            self._ledger.record(name)

    def _check_unchanged(self, name: str) -> None:
        model, states = self._task.original.model, self._task.original.states
        for one in [name] if name in states and name not in self._mixed else states:
            if file_state(model.path / one) != states[one]:
                raise Retryable(
                    FaultCode.BASE_CHANGED if model.noun == "base" else FaultCode.CHECKPOINT_CHANGED,
                    self._task.operation,
                    f"the {model.noun}'s file changed while it was read",
                    f"do not change the {model.noun} while it is read",
                    path=model.path / one,
                )


def stream(task: MergeTask, meter: Meter) -> MergeResult:
    """Write the files of the plan, those left out that an earlier attempt has finished.

    Raises Permanent for values that can't be written, Retryable when the model's files change meanwhile, OSError as it comes.
    """
    import torch

    from handlers.merge.engine.streaming import StreamingMerge

    matched, plan, output = task.matched, task.plan, task.output
    ledger = None
    if task.original.states:
        made_for = purpose(task.adapters, [plan.describe(), matched.edits], task.original.states)
        ledger = Ledger(output, made_for, plan.names, _rereading(meter), task.keep)
    missing = [file for file in plan.files if ledger is None or file.name not in ledger.kept]
    workers = torch.get_num_threads() + SPARE
    StreamingMerge(Bundle(task.adapters), task.model, missing, output, _Observer(task, meter, ledger), workers).run()
    if plan.index is not None:
        (output / str(plan.index_name)).write_bytes(plan.index)
    elif plan.index_name:
        shutil.copyfile(task.model.path / plan.index_name, output / plan.index_name)
    changed = [one for one in matched.outputs if one.changed]
    return MergeResult(
        "streaming", len(changed), sum(one.elements for one in changed), matched.edits, warnings=tuple(matched.warnings), ledger=ledger,
        recast_tensors=sum(one.recast for one in matched.outputs),
    )  # fmt: skip


def _rereading(meter: Meter) -> Callable[[str], Callable[[int], None]]:
    return lambda name: lambda count: meter.add(count, f"checking {name}, which an interrupted attempt left")


def check_written(task: MergeTask, written: ModelFolder, meter: Meter, verify: str) -> None:
    """Permanent when the files in `written` do not hold what they should; `verify` is "sample" or "full"."""
    from handlers.merge.engine.check_plan import check
    from handlers.merge.engine.readback import contradictions, wrong

    on_bytes = meter.keep_alive("checking the written weights")
    read = Bundle(task.adapters).tensor
    problems = check(task.matched.outputs, read, task.model, written, full=verify == "full", on_bytes=on_bytes)
    if task.adapters:  # a full fine-tune is written as it is, whatever its config.json says about the weights
        problems += contradictions(written)
    if problems:
        raise wrong(problems, written.path)


def set_threads(threads: int) -> None:
    """Set the threads of torch's operations in this process, at least one."""
    import torch

    torch.set_num_threads(max(1, threads))
