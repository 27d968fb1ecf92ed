"""One measurement by `ckptd bench`: child after child, until every variant was measured, could not be, or the time is over.

A child writes what it has measured after every variant. So where one is killed, for want of memory too, only the variant that it worked on
is lost, and another child goes on with the next.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from daemon.config.settings import Settings
from daemon.contract import cpu
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Fault, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.processes.benchmark import PEER, Bench, BenchedVariant, BenchMachine, BenchRequest, Measured, Measurements, Unit
from daemon.contract.version import __version__
from daemon.operating.measuring.children import Children
from daemon.operating.measuring.stages import Progress, scratch
from daemon.operating.measuring.subject import OPERATION, Choice, Export

MEMORY = (FaultCode.MEMORY_LIMIT, FaultCode.MEMORY_UNEXPECTED, FaultCode.OUT_OF_MEMORY, FaultCode.MEMORY_PRESSURE)


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    threads: tuple[int, ...]
    tokens: int
    rounds: int
    seconds: float
    finish: bool = False
    """Whether what was begun when the time is over is finished."""


@dataclass
class _Work:
    """What is measured already, over all children."""

    units: list[Unit]
    peer: str | None
    done: list[Measured] = field(default_factory=list)
    no_pytorch: str | None = None
    cut: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    kind: str | None = None
    task: str | None = None
    stumbles: int = 0
    """Children that ended before they had begun with anything."""

    def take(self, measurements: Measurements) -> None:
        """What a child has finished."""
        self.done += measurements.done
        finished = {(measured.variant, measured.threads) for measured in measurements.done}
        self.units = [unit for unit in self.units if (unit.variant, unit.threads) not in finished]
        self.cut += measurements.cut
        self.versions |= measurements.versions
        self.kind, self.task = measurements.kind or self.kind, measurements.task or self.task
        if measurements.peer_problem is not None:
            self.peer, self.no_pytorch = None, measurements.peer_problem

    def end(self, partial: Measured | None, rounds: int) -> None:
        """A child was ended at the limit of time: what it had measured of a unit counts. `rounds`: those that were asked for."""
        made = [point.tokens_per_second.rounds for point in partial.points if point.tokens_per_second] if partial else []
        if partial is None or not made:
            return
        unit = next(unit for unit in self.units if (unit.variant, unit.threads) == (partial.variant, partial.threads))
        points = [
            point if point.tokens_per_second or point.problem else point.model_copy(update={"problem": "The limit of time was reached."})
            for point in partial.points
        ]  # fmt: skip
        missing = len(points) - len(made)
        left = f", {missing} of {len(points)} points were not measured" if missing else ""
        self.cut.append(f"{_named(unit)}: {min(made)} of {rounds} rounds were made{left}.")
        self.done.append(partial.model_copy(update={"points": tuple(points)}))
        self.units.remove(unit)

    def blame(self, measurements: Measurements, fault: Fault) -> None:
        """A child has ended by itself: what it worked on is tried once more without PyTorch where memory was short, else it is lost."""
        if measurements.current is None:
            self.stumbles += 1
            if self.stumbles > 1:
                self._lose(self.units, fault)
            return
        name, threads = measurements.current
        if name == PEER:
            self.peer, self.no_pytorch = None, fault.model_copy(update={"operation": "run the merged model in PyTorch"}).sentence()
            return
        for place, unit in enumerate(self.units):
            if (unit.variant, unit.threads) != (name, threads):
                continue
            if fault.code in MEMORY and self.peer is not None and not unit.alone and unit.folder != self.peer:
                del self.units[place]
                self.units.append(unit.model_copy(update={"alone": True}))
                why = "both together did not fit into the memory"
                self.notes.append(f"{_named(unit)} was measured without PyTorch beside it: {why}.")
            else:
                self._lose([unit], fault)
            return

    def _lose(self, units: Sequence[Unit], fault: Fault) -> None:
        for unit in list(units):
            lost = fault.model_copy(update={"operation": f"{OPERATION} {unit.variant}"})
            self.done.append(Measured(variant=unit.variant, threads=unit.threads, fault=lost))
            self.units.remove(unit)


def measure(settings: Settings, export: Export, choice: Choice, asked: Asked, progress: Progress) -> Bench:
    """Measure the chosen variants. Raises KeyboardInterrupt once `progress.stop` says so, when nothing of it runs any more."""
    began, created = time.monotonic(), datetime.now(UTC)
    machine = _machine()
    units = [
        Unit(variant=name, folder=str(export.folder / name), threads=threads)
        for threads in asked.threads for name in choice.variants if name not in choice.faults
    ]  # fmt: skip
    work = _Work(units, choice.peer, no_pytorch=choice.no_peer)
    total = max(1, len(units))
    with scratch(settings.state_directory) as folder:
        children = Children(settings, export, folder, progress)
        while work.units and (left := asked.seconds - (time.monotonic() - began)) > 0:
            request = BenchRequest(
                units=tuple(work.units), peer=work.peer, lengths=asked.lengths, batches=asked.batches, tokens=asked.tokens,
                rounds=asked.rounds, seconds=left,
            )  # fmt: skip
            ended = children.measure(request, share=len(work.units) / total, finish=asked.finish)
            work.take(ended.measurements)
            if ended.fault is None:
                work.end(ended.measurements.partial, asked.rounds)
                break
            work.blame(ended.measurements, ended.fault)
    work.cut += [f"{_named(unit)} was not measured." for unit in work.units]
    if not any(measured.points for measured in work.done) and work.cut:
        work.notes.append("Nothing was measured in that time: give more --minutes, or --finish, which lets it finish what it has begun.")
    work.notes += over(time.monotonic() - began, asked.seconds) if asked.finish else []
    return Bench(
        folder=str(export.folder), export_id=export.text("export_id"), run=export.text("run"), step=_step(export),
        created=created.isoformat(timespec="seconds"), kind=work.kind, task=work.task, lengths=asked.lengths, batches=asked.batches,
        threads=asked.threads, tokens=asked.tokens, rounds=asked.rounds, limit_seconds=asked.seconds,
        seconds=round(time.monotonic() - began, 3), no_pytorch=work.no_pytorch, cut=tuple(work.cut), notes=(*choice.notes, *work.notes),
        variants=tuple(_variant(export, name, work.done, choice.faults.get(name)) for name in choice.variants), machine=machine,
        versions={"ckptd": __version__, **dict(sorted(work.versions.items()))},
    )  # fmt: skip


def over(took: float, limit: float) -> list[str]:
    """The sentence that it took longer than it was to, by a second or more, and why; none where it did not. Seconds."""
    if took < limit + 1:
        return []
    return [f"It took {took:.0f} s instead of {limit:.0f} s: with --finish, the start of a model and a round that has begun are finished."]


def _named(unit: Unit) -> str:
    return f"{unit.variant} with {unit.threads} thread{'s' * (unit.threads > 1)}"


def _step(export: Export) -> int | None:
    step = export.manifest.get("step")
    return step if isinstance(step, int) else None


def _variant(export: Export, name: str, done: Sequence[Measured], fault: Fault | None) -> BenchedVariant:
    mine = [row for row in done if row.variant == name]
    fault = fault or next((row.fault for row in mine if row.fault is not None), None)
    return BenchedVariant(
        variant=name, size_bytes=sum(export.sizes.get(name, {}).values()),
        starts=tuple(row.start for row in mine if row.start is not None), points=tuple(point for row in mine for point in row.points),
        fault=None if fault is None else fault.sentence(), code=None if fault is None else str(fault.code),
    )  # fmt: skip


def _machine() -> BenchMachine:
    processor = cpu.here()
    return BenchMachine(
        cpu=processor.model, features=processor.features, architecture=processor.architecture,
        logical_cores=psutil.cpu_count(logical=True), usable_cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(psutil.virtual_memory().total), load=round(os.getloadavg()[0], 2),
        kernel=f"{platform.system()} {platform.release()}",
    )  # fmt: skip


def page(settings: Settings, export: Export, value: Bench, target: Path, progress: Progress) -> None:
    """Write the page of a measurement to `target`. Raises CkptdError where that fails."""
    with scratch(settings.state_directory) as folder:
        content = Children(settings, export, folder, progress).page(value)
    try:
        write_atomic(target, content)
    except OSError as error:
        raise from_oserror(error, "write the page", str(target)) from None
