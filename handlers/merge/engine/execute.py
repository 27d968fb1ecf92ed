"""Executing a merge: the streaming engine file by file, with what is needed to resume it, and the check of the written files.

Called by `handlers.merge.api` for an adapter and its base, and by `handlers.merge.full_finetune` for a model without an adapter. torch is
imported when the work begins.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.failpoints import point
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback
from daemon.contract.jobs.options import MergeOptions
from daemon.contract.models.safetensors import DTYPES
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.bundle import Bundle
from handlers.merge.engine.resume_ledger import Ledger, States, file_state, purpose
from handlers.merge.plan.matcher import Matched
from handlers.merge.plan.output_layout import Output, Plan
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder

Progress = Callable[[float, str], None]
"""Called with the fraction of the work that is done, 0 to 1, and a message."""


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Keep Python's garbage collector from running meanwhile.

    The plan of a large model is hundreds of thousands of objects, none of which is garbage before the merge ends, and for each pass the
    collector goes through these and through all of torch's: about 0.1 s.
    """
    was_running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_running:
            gc.enable()


HELD = 0.75
"""Share of an adapter's changes that merged weights should hold: a check misses a part of the fine-tuning below it."""
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

    def verify(self, options: MergeOptions) -> str | None:
        """Return how closely the written files are compared: "sample" or "full"; None for not at all."""
        return options.verify if self.check else None

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
    held: float | None = None
    """Share of the adapters' changes that the written numbers hold, of samples; None where that was not measured."""


class Meter:
    """Turns bytes that are done into a fraction of all. May be called by several threads."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total or 1
        self._done = 0
        self._lock = threading.Lock()
        self._progress = progress

    def add(self, count: int, message: str) -> None:
        """Count `count` more bytes as done."""
        with self._lock:
            self._done += count
            self._progress(min(self._done / self._total, 1.0), message)

    def keep_alive(self, message: str) -> Callable[[int], None]:
        """Return a callback for work that is not part of the total: it reports the message and leaves the fraction as it is."""
        return lambda count: self.add(0, message)


class Observer:
    """Reports the engine's progress, and records each finished file. Called by several threads; what it raises ends the merge."""

    def __init__(self, task: MergeTask, meter: Meter, ledger: Ledger | None) -> None:
        self._task, self._meter, self._ledger = task, meter, ledger
        # A file may hold tensors of other files of the model; then all of them are checked.
        files = task.plan.files
        self._mixed = {output.file for file in files for output in file.outputs if output.stored and output.stored.file != output.file}

    def moved(self, count: int, name: str) -> None:
        """Take note of `count` more bytes written, which belong to the file or module `name`."""
        self._meter.add(count, f"{self._task.verb} {name}")

    def finished(self, name: str) -> None:
        """Take note that the file of this name is written. Retryable when a file of the model of which it was made has changed."""
        point("merge.shard.written")
        self._check_unchanged(name)
        if self._ledger is not None:
            self._ledger.record(name)

    def _check_unchanged(self, name: str) -> None:
        model, states = self._task.original.model, self._task.original.states
        for file in [name] if name in states and name not in self._mixed else states:
            if file_state(model.path / file) != states[file]:
                raise Retryable(
                    FaultCode.BASE_CHANGED if model.noun == "base" else FaultCode.CHECKPOINT_CHANGED,
                    self._task.operation,
                    f"the {model.noun}'s file changed while it was read",
                    f"do not change the {model.noun} while it is read",
                    path=model.path / file,
                )


@collection_paused()
def stream(task: MergeTask, meter: Meter, verify: str | None) -> MergeResult:
    """Write the files of the plan, those left out that an earlier attempt has finished, and check them all.

    `verify` says how closely, "sample" or "full"; None leaves the check out. Raises Permanent for values that can't be written and for
    files that do not hold what they should, Retryable when the model's files change meanwhile, OSError as it comes.
    """
    import torch

    from handlers.merge.engine.check_plan import FileCheck
    from handlers.merge.engine.streaming import StreamingMerge

    matched, plan, output = task.matched, task.plan, task.output
    ledger = None
    if task.original.states:
        made_for = purpose(task.adapters, [plan.describe(), matched.edits], task.original.states)
        ledger = Ledger(output, made_for, plan.names, _rereading(meter), task.keep)
    there = ledger.kept if ledger else ()
    kept, missing = ([file for file in plan.files if (file.name in there) == wanted] for wanted in (True, False))
    workers, check = torch.get_num_threads() + SPARE, None
    with Bundle(task.adapters) as bundle:
        if verify is not None:
            on_bytes = meter.keep_alive("checking the written weights")
            check = FileCheck(bundle.tensor, task.model, output, on_bytes, full=verify == "full")
        StreamingMerge(bundle, task.model, missing, output, Observer(task, meter, ledger), workers, check, kept).run()
    if plan.index is not None:
        (output / str(plan.index_name)).write_bytes(plan.index)
    elif plan.index_name:
        shutil.copyfile(task.model.path / plan.index_name, output / plan.index_name)
    changed = [tensor for tensor in matched.outputs if tensor.changed]
    held = check.held.share if check else None
    return MergeResult(
        "streaming", len(changed), sum(tensor.elements for tensor in changed), matched.edits,
        warnings=(*matched.warnings, *_lost(held, changed)), ledger=ledger,
        recast_tensors=sum(tensor.recast for tensor in matched.outputs), held=held,
    )  # fmt: skip


def _lost(held: float | None, changed: Sequence[Output]) -> list[str]:
    """Return a warning where the dtype that is written can't hold what the adapter changes."""
    if held is None or held >= HELD:
        return []
    dtype = DTYPES[Counter(output.dtype for output in changed).most_common(1)[0][0]][0]
    return [
        f"{dtype} holds only about {max(0.0, held):.0%} of what the adapter changes in the weights: its changes"
        " are smaller than the distance between two such numbers, and rounding loses them, in PEFT's merge too."
        ' merge.dtype = "float32" keeps them'
    ]


def _rereading(meter: Meter) -> Callable[[str], Callable[[int], None]]:
    return lambda name: lambda count: meter.add(count, f"checking {name}, which an interrupted attempt left")


@collection_paused()
def check_headers(task: MergeTask, written: ModelFolder) -> None:
    """Raise Permanent when headers in `written` are not as planned, or contradict its config.json; the rest of the check is `stream`'s."""
    from handlers.merge.engine.check_plan import misplaced
    from handlers.merge.engine.readback import contradictions, wrong

    problems = misplaced(task.plan, written)
    if task.adapters:  # a full fine-tune is written as it is, whatever its config.json says about the weights
        problems += contradictions(written)
    if problems:
        raise wrong(problems, written.path)


def set_threads(threads: int) -> None:
    """Set the threads of torch's operations in this process, at least one."""
    import torch

    torch.set_num_threads(max(1, threads))
