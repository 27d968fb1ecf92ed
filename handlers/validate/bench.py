"""The stage of `ckptd bench`: how fast, how large and how quickly ready each variant of an export is, in turns with PyTorch.

Called by `handlers/__main__.py` for a job file that `daemon.operating.measuring` writes; it is no stage of the plan and gives no verdict.
It reads the published export and writes `measured.json` into its staging folder after every variant, so that what is finished is not lost
with a process that is killed in the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import CkptdError, Fault, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import StageContext
from daemon.contract.jobs.processes.benchmark import MEASURED, PEER, BenchRequest, BenchStart, Measured, Measurements, Unit
from handlers.child.progress import Reporter, StageOutput
from handlers.models.files import read_json
from handlers.validate.engines.registry import EXACT, EngineSpec, engines
from handlers.validate.engines.task_profile import ValidatedTask, subject_of
from handlers.validate.speeds.series import Lost, Point, Series
from handlers.validate.workers.client import RETRY, EngineWorker, WorkerFailed, toolchain_of
from handlers.validate.workers.encoder_pass import TOKENS_A_PASS
from handlers.validate.workers.protocol import AskStats, Loaded, Time

_OPERATION = "read the model's configuration"
KEEP_SECONDS = 0.5
"""How often what was measured of a variant is kept, for the case that the process is ended at the limit of time."""
_FEW = 256
"""Tokens that every vocabulary has, for a model that does not say how many it knows."""
_SMALLER = "free memory on the machine, or give smaller --lengths and --batches; `ckptd verify` says whether the export is damaged"
_DAMAGED = "run `ckptd verify` on the export; if files are damaged, export the checkpoint again"


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Measure every unit of the request. Raises Permanent where the job file has none."""
    if context.bench is None:
        raise Permanent(FaultCode.BAD_JOB, "measure an export", "the job file has no request", "run `ckptd bench`")
    _Bench(context, context.bench, reporter).run()
    return StageOutput(reusable=False)


class _Bench:
    """One run of the stage."""

    def __init__(self, context: StageContext, request: BenchRequest, reporter: Reporter) -> None:
        self._context, self._request, self._reporter = context, request, reporter
        self._end = time.monotonic() + request.seconds
        self._measured = Measurements()
        self._left = len(request.units)

    def run(self) -> None:
        """Measure with each number of threads; PyTorch is loaded once for each."""
        for (threads, alone), units in itertools.groupby(self._request.units, key=lambda unit: (unit.threads, unit.alone)):
            with contextlib.nullcontext() if alone else self._pytorch(threads) as pytorch:
                for unit in units:
                    self._measure(unit, pytorch)
                    self._left -= 1

    def _keep(self, **more: object) -> None:
        self._measured = self._measured.model_copy(update=more)
        write_atomic(Path(self._context.staging, MEASURED), self._measured.model_dump_json(indent=1), durable=False)

    def _cut(self, sentence: str) -> None:
        self._keep(cut=(*self._measured.cut, sentence))

    @contextlib.contextmanager
    def _pytorch(self, threads: int) -> Iterator[_Model | None]:
        """Yield the merged model in PyTorch, ready; None where there is none, or it can't be run."""
        folder = self._request.peer
        if folder is None or self._measured.peer_problem is not None:
            yield None
            return
        self._keep(current=(PEER, threads))
        self._say(0.0, "PyTorch", "loading")
        with contextlib.ExitStack() as stack:
            model: _Model | None = None
            try:
                model = stack.enter_context(_Model(self._context, Path(folder), EXACT.engine, "", f"pytorch-{threads}", threads))
                model.start()
            except (WorkerFailed, CkptdError) as error:
                self._without_pytorch(error)
                model = None
            yield model

    def _without_pytorch(self, error: WorkerFailed | CkptdError) -> None:
        fault = _fault("run the merged model in PyTorch", error, self._request.peer)
        self._keep(peer_problem=fault.sentence())

    def _measure(self, unit: Unit, pytorch: _Model | None) -> None:
        self._keep(current=(unit.variant, unit.threads))
        name = f"{unit.variant} with {unit.threads} thread{'s' * (unit.threads > 1)}"
        left = self._end - time.monotonic()
        if left <= 0:
            return
        if pytorch is not None and Path(unit.folder) == pytorch.folder:
            self._series(unit, name, pytorch, None, left)
            return
        self._say(0.0, unit.variant, "loading")
        try:
            limits = catalog().variants[unit.variant].limits
            with _Model(
                self._context, Path(unit.folder), limits.engine, limits.toolchain, f"{unit.variant}-{unit.threads}", unit.threads
            ) as model:
                model.start()
                self._series(unit, name, model, pytorch, left)
        except (WorkerFailed, CkptdError) as error:
            self._done(
                unit, Measured(variant=unit.variant, threads=unit.threads, fault=_fault(f"measure {unit.variant}", error, unit.folder))
            )

    def _series(self, unit: Unit, name: str, model: _Model, pytorch: _Model | None, left: float) -> None:
        """Measure all points of one model; what is found is kept, also where its process ends."""
        points = [self._point(model, batch, length) for length in self._request.lengths for batch in self._request.batches]
        self._keep(kind=model.subject.kind, task=model.subject.task)
        kept = time.monotonic()

        def said(share: float, what: str) -> None:
            nonlocal kept
            self._say(share, unit.variant, what)
            if time.monotonic() - kept >= KEEP_SECONDS:
                start = model.started()
                self._keep(partial=_so_far(unit, points, start), versions={**self._measured.versions, **model.versions})
                kept = time.monotonic()

        series = Series(points, self._request.rounds, time.monotonic() + left / self._left, said)
        fault = None
        other = pytorch.worker if pytorch is not None and self._measured.peer_problem is None else None
        try:
            series.run(model.worker, other)
        except Lost as lost:
            fault = _fault(f"measure {unit.variant}", lost.failure, unit.folder)
        if series.other_failure is not None:
            self._without_pytorch(series.other_failure)
        start = model.started() if fault is None else None
        if start is not None:
            self._keep(versions={**self._measured.versions, **model.versions})
        if series.left_out:
            self._cut(f"{name}: {series.left_out}.")
        self._done(unit, _so_far(unit, points, start, fault))

    def _done(self, unit: Unit, measured: Measured) -> None:
        self._keep(done=(*self._measured.done, measured), current=None, partial=None)

    def _point(self, model: _Model, batch: int, length: int) -> Point:
        """Give rows of pseudo-random tokens, the same for every model; with a problem where the model has no positions for them."""
        random = np.random.default_rng([batch, length])
        # Tokens with a meaning of their own stand at the ends of nearly every vocabulary.
        rows = random.integers(model.vocabulary // 4, max(model.vocabulary * 3 // 4, model.vocabulary // 4 + 1), (batch, length))
        kind, room, tokens = model.subject.kind, model.loaded.context_length, self._request.tokens
        if kind == "encoder":
            tokens = TOKENS_A_PASS  # one pass
        point = Point(rows.tolist(), tokens)
        if room is None:
            return point
        if length > room or (kind == "causal" and length >= room):
            point.problem = f"the model has {room} positions"
        elif kind == "causal":
            point.tokens = min(tokens, room - length)
        elif kind == "seq2seq":  # source and target have positions of their own
            point.tokens = max(1, min(tokens, room - 1))
        return point

    def _say(self, share: float, who: str, what: str) -> None:
        total = len(self._request.units)
        self._reporter.progress((total - self._left + share) / total, f"{who}: {what}")


class _Model:
    """A variant in a process of its own, with what it says of itself. Made and ended by `with`, loaded by `start`."""

    def __init__(self, context: StageContext, folder: Path, engine: str, toolchain: str, name: str, threads: int) -> None:
        """Raise WorkerFailed where nothing here can run it, Permanent where its configuration can't be read."""
        self.folder, self._threads = folder, threads
        self.subject: ValidatedTask = subject_of(folder)
        if self.subject.engine not in engines()[engine]:
            remedy = "leave it out; `ckptd formats` lists the variants that this machine can make"
            raise WorkerFailed(f"its engine {engine} does not run models for {self.subject.task}", remedy, code=FaultCode.ENGINE_MISSING)
        place = toolchain_of(context, toolchain)
        spec = EngineSpec(engine=engine, folder=str(folder), threads=threads, task=self.subject.task, sentence=self.subject.sentence)
        limits = context.limits.model_copy(update={"threads": threads})
        self._make: Callable[[], EngineWorker] = lambda: EngineWorker(name, spec, Path(context.temporary), limits, toolchain=place)
        self.versions: dict[str, str] = {}

    def __enter__(self) -> _Model:
        self._began = time.perf_counter()
        self.worker = self._make()
        return self

    def __exit__(self, *error: object) -> None:
        self.worker.close()

    def start(self) -> None:
        """Load it and have it answer once. Raises WorkerFailed."""
        self.loaded: Loaded = self.worker.load()
        self.vocabulary = self._vocabulary()
        first = self.vocabulary // 4
        self.worker.ask(Time(rows=[[first, first]], tokens=1))
        self._start_seconds = time.perf_counter() - self._began

    def started(self) -> BenchStart | None:
        """Give what its process took so far; None where it can't say any more."""
        try:
            stats = self.worker.ask(AskStats())
        except WorkerFailed:
            return None
        self.versions = stats.versions
        return BenchStart(
            threads=self._threads, start_seconds=self._start_seconds, load_seconds=stats.load_seconds, peak_rss_bytes=stats.peak_rss_bytes
        )

    def _vocabulary(self) -> int:
        """Give tokens that it takes: as its configuration says, since an encoder's outputs are no tokens."""
        config = read_json(self.folder / "config.json", _OPERATION)
        text = config.get("text_config")
        for source in (config, text if isinstance(text, dict) else {}):
            if isinstance(size := source.get("vocab_size"), int) and size > 0:
                return size
        return (self.loaded.vocabulary if self.subject.kind != "encoder" else None) or _FEW


def _so_far(unit: Unit, points: Sequence[Point], start: BenchStart | None, fault: Fault | None = None) -> Measured:
    summaries = tuple(point.summary(unit.threads) for point in points)
    return Measured(variant=unit.variant, threads=unit.threads, start=start, points=summaries, fault=fault)


def _fault(operation: str, error: WorkerFailed | CkptdError, folder: str | None) -> Fault:
    if isinstance(error, CkptdError):
        return error.fault
    remedy = _SMALLER if error.code == FaultCode.WORKER_LOST else _DAMAGED if error.remedy == RETRY else error.remedy
    return Fault(code=error.code, operation=operation, cause=error.cause, remedy=remedy, path=folder, details=error.details)
