"""`ckptd quality RUN`: what the exports of a run say, step by step, and which checkpoint they speak for.

Only reports are read. A run is named by its name, or by the folder that holds its exports, which may come from another machine.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from daemon.config.places.export_names import folder_of
from daemon.config.places.paths import StatePaths, states_in
from daemon.contract.advice.paired import Difference
from daemon.contract.advice.which import Standing, advice, standing
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.points import MOST_STEPS, StepPoint
from daemon.contract.light import dataclass
from daemon.journal.file.opening import reading
from daemon.journal.overview import targets_of
from daemon.operating.monitoring.status import snapshot
from daemon.publishing.run_figures import ReportRead, beside, figures_of_run, read_report
from daemon.publishing.verification import exports_below

MOST_READ = 2 * MOST_STEPS
"""Reports of a run that are read, the latest."""
_LISTED = 10
"""Runs that are named where none, or more than one, is meant."""


@dataclass(frozen=True)
class QualityOfArtifact:
    """One artifact at one step; null was not measured. Sizes are bytes."""

    verdict: str
    published: bool
    """Whether the export's folder holds it."""
    size_bytes: int | None
    kl: float | None
    """Divergence from the live model, in nats per position."""
    agreement: float | None
    tokens_per_second: float | None
    speed_over_pytorch: float | None
    quality: Mapping[str, float]
    """What was measured of the artifact itself: `perplexity`, `accuracy`, `macro_f1`, `exact_match`, `chrf`, and the values
    of the tasks of `[[validate.tasks]]`, by their names."""
    kl_interval: tuple[float, float] | None = None
    """The 95 % interval of the divergence."""
    agreement_interval: tuple[float, float] | None = None
    """The 95 % interval of the agreement."""
    speed_range: tuple[float, float] | None = None
    """The slowest and the fastest of the turns that the speed is the median of."""


@dataclass(frozen=True)
class BesideBest:
    """How far an export is from the one with the best figure, by the quality of `variant`."""

    value: float
    """Its figure minus the best one; of perplexities its figure over the best one."""
    low: float | None
    """Begin of the 95 % interval of `value`, widened for as many exports as are compared; null where there is none."""
    high: float | None
    """End of it."""
    differs: bool
    """Whether it may be called a difference."""


@dataclass(frozen=True)
class QualityAtStep:
    """One export of the run."""

    id: str
    """Id of its job."""
    step: int
    ending: bool
    status: str
    finished: str
    """When its report was written, as ISO 8601."""
    loss: float | None
    """What training recorded last: the loss of the evaluation, else that of the training."""
    comparison: str
    """Figures of exports with the same value can be compared: a digest of the texts and the settings."""
    folder: str | None
    """Its folder; null if it is gone, and known only by the newest report."""
    artifacts: Mapping[str, QualityOfArtifact]


@dataclass(frozen=True)
class RunQuality:
    """The exports of a run. The names are stable for programs."""

    run: str
    root: str
    """The watched directory below which the run lies."""
    exports: tuple[QualityAtStep, ...]
    """In the order of training, at most 50."""
    trainers_best: int | None
    """The step that the trainer names as its best; null where it names none."""
    variant: str | None
    """The variant by whose quality checkpoints are compared; null where they can't be."""
    metric: str | None
    """What is compared, for example `perplexity`, or the name of a task."""
    best: str | None
    """The export to deploy by it; null where that can't be said."""
    best_step: int | None
    """Its step."""
    equal: tuple[str, ...]
    """The exports among which no difference was seen, with `best`: one alone where it differs from all others."""
    sentence: str
    """Which checkpoint to deploy, and which of its artifacts, or why that can't be said; the same words as in the run's newest report."""
    leader: str | None = None
    """The export with the best figure."""
    beside_leader: Mapping[str, BesideBest] = field(default_factory=dict)
    """Export → how far it is from that."""


class NoFigures(UsageError):
    """A run has no export with a report."""


def run_quality(state: Path, output: Path, wanted: str | None, best_variant: str, best_task: str = "") -> RunQuality:
    """The one run that is meant: of the exports that a journal of the state directory knows, and of those in the output, which may be made
    by hand. Raises UsageError where that is none or more than one.
    """
    folder = Path(os.path.abspath(wanted)) if wanted else None
    if folder is not None and folder.is_dir():
        runs = _by_run(beside(folder / "export"))
    else:
        every = _by_run(list(dict.fromkeys((*_in_journals(state), *_in_output(output)))))
        runs = {key: reads for key, reads in every.items() if wanted in (None, key[1], f"{key[0]}/{key[1]}")}
        if wanted and not runs:  # a part of the name, as people call it
            runs = {key: reads for key, reads in every.items() if wanted in key[1]}
        if wanted and not runs:
            raise _not_one(f"no run {wanted!r} has an export", every)
    if len(runs) != 1:
        raise _not_one("there are several runs" if runs else "no export with a report is there", runs)
    return _quality(runs, best_variant, best_task)


def quality_in_journal(state: Path, wanted: str, best_variant: str, root: str = "", best_task: str = "") -> RunQuality:
    """The same of a run of exactly this name, below `root` where several have it, of the exports alone that the daemon has made.

    Raises UsageError where there is none.
    """
    targets: list[tuple[str, str]] = []
    with contextlib.suppress(FileNotFoundError), reading(StatePaths(state).journal) as connection:
        targets = targets_of(connection, wanted)[-MOST_READ:]
    runs = _by_run([folder_of(Path(target), ended) for target, ended in targets])
    runs = {key: reads for key, reads in runs.items() if key[1] == wanted and root in ("", key[0])}
    if not runs:
        raise _not_one(f"no run {wanted!r} has an export", runs, NoFigures)
    if len(runs) != 1:
        raise _not_one("several roots have such a run", runs)
    return _quality(runs, best_variant, best_task)


def _quality(runs: Mapping[tuple[str, str], list[ReportRead]], best_variant: str, best_task: str) -> RunQuality:
    ((root, run), reads) = next(iter(runs.items()))
    return quality_of(root, run, reads, best_variant, best_task)


def quality_of(root: str, run: str, reads: Sequence[ReportRead], best_variant: str, best_task: str = "") -> RunQuality:
    """What the reports of a run say, which are given in the order of training."""
    figures = figures_of_run(reads, [(read.point.step, read.metadata) for read in reads], best_variant, best_task)
    folders = {read.point.export: str(read.path) for read in reads}
    stood = standing(figures.points, figures.trainers_best, best_variant, best_task)
    known = stood if isinstance(stood, Standing) else None
    return RunQuality(
        run=run, root=root, exports=tuple(_at_step(point, folders.get(point.export)) for point in figures.points),
        trainers_best=figures.trainers_best, variant=stood.variant, metric=stood.metric,
        best=known.pick.export if known else None, best_step=known.pick.step if known else None,
        equal=tuple(point.export for point in known.equal) if known else (),
        sentence=advice(figures.points, figures.trainers_best, best_variant, best_task),
        leader=known.leader.export if known else None,
        beside_leader={export: _beside(between, known.metric) for export, between in known.apart.items()} if known else {},
    )  # fmt: skip


def _beside(between: Difference, metric: str) -> BesideBest:
    value, low, high = (metric == "perplexity" and between.ratio) or (between.value, between.low, between.high)
    if metric == "perplexity" and between.ratio is None:
        value, low, high = math.exp(min(between.value, 700.0)), None, None
    return BesideBest(value, low, high, between.sure)


def _in_journals(state: Path) -> Iterator[Path]:
    """The folders of the exports that the daemon has made, and then of those by hand, which may lie anywhere."""
    for place in states_in(state):
        for job in snapshot(place, limit=10_000).jobs:
            if job.report_file and job.state in ("succeeded", "partial"):
                yield Path(job.report_file).parent


def _in_output(output: Path) -> list[Path]:
    try:
        return list(exports_below(output))
    except OSError:  # it is not there yet, or may not be read
        return []


def _at_step(point: StepPoint, folder: str | None) -> QualityAtStep:
    return QualityAtStep(
        id=point.export, step=point.step, ending=point.ending, status=point.status, finished=point.finished, loss=point.loss,
        comparison=point.comparison, folder=folder,
        artifacts={
            variant: QualityOfArtifact(**quality.model_dump(exclude={"by_text", "tasks"})) for variant, quality in point.artifacts.items()
        },
    )  # fmt: skip


def _by_run(folders: Sequence[Path]) -> dict[tuple[str, str], list[ReportRead]]:
    """(root, run) → the reports of its latest exports, in the order of training."""
    runs: dict[tuple[str, str], dict[str, ReportRead]] = {}
    for folder in folders:
        if (read := read_report(folder)) is not None and read.point.status != "failed":
            runs.setdefault((read.root, read.run), {})[read.point.export] = read
    return {key: sorted(reads.values(), key=lambda read: read.point.place)[-MOST_STEPS:] for key, reads in runs.items()}


def _not_one(cause: str, runs: Mapping[tuple[str, str], object], kind: type[UsageError] = UsageError) -> UsageError:
    names = [run if [name for _, name in runs].count(run) == 1 else f"{root}/{run}" for root, run in runs]
    listed = ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
    remedy = f"give one of {listed}" if names else "give the name of a run (`ckptd list`), or the folder that holds its exports"
    return kind(FaultCode.NO_SUCH_RUN, "show the quality of a run", cause, remedy)
