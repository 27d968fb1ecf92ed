"""The figures of a run's exports, from their published reports. Called when a job ends, when a report starts, and by `ckptd quality`.

Only reports are read, each bounded in bytes, and at most `MOST_STEPS` of a run. One that can't be read is left out: the figures are advice.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from daemon.checkpoints.selection import best_step
from daemon.contract.disk.files import read_bounded
from daemon.contract.jobs.points import MOST_STEPS, RunFigures, StepPoint
from daemon.contract.jobs.run_figures import latest, point_of

if TYPE_CHECKING:
    from daemon.journal.journal import Journal
    from daemon.journal.rows import JobRow

REPORT = "report.json"
MOST_BYTES = 16 << 20
"""Of a report that is read."""
HISTORY = "loss_history"
"""The one part of what training knew that is large, and that nothing is compared by."""
_MOST_BESIDE = 4 * MOST_STEPS
"""Folders beside an export that are looked at: several runs may share a place."""


@dataclass(frozen=True)
class ReportRead:
    """What a published report says of its run."""

    path: Path
    """The export's folder."""
    run: str
    root: str
    point: StepPoint
    metadata: Mapping[str, Any]
    """What training knew, without the history of its losses."""


def read_report(folder: Path) -> ReportRead | None:
    """The report of an export; None where it has none that can be read."""
    file = folder / REPORT
    try:
        seen = file.stat()
        return _read(folder, seen.st_mtime_ns, seen.st_size, seen.st_ino)
    except (OSError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=4 * MOST_STEPS)
def _read(folder: Path, mtime_ns: int, size: int, inode: int) -> ReportRead | None:
    """Read once for each content: every export of a run asks for those before it. A few KiB each are kept, at most about 100."""
    report = json.loads(read_bounded(folder / REPORT, MOST_BYTES))
    point = point_of(report)
    if point is None:
        return None
    checkpoint = report["checkpoint"]
    metadata = checkpoint.get("metadata")
    known = {key: value for key, value in metadata.items() if key != HISTORY} if isinstance(metadata, dict) else {}
    return ReportRead(folder, str(checkpoint.get("run")), str(checkpoint.get("root")), point, known)


def remembered(folder: Path) -> tuple[StepPoint, ...]:
    """What an export's report says of the run's other exports, some of which may be gone."""
    try:
        report = json.loads(read_bounded(folder / REPORT, MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return ()
    so_far = report.get("run_so_far") if isinstance(report, dict) else None
    rows = so_far.get("points") if isinstance(so_far, dict) else None
    return tuple(_points(rows if isinstance(rows, list) else ()))


def _points(rows: Iterable[Any]) -> Iterable[StepPoint]:
    for row in rows:
        try:
            yield StepPoint.model_validate(row).model_copy(update={"kept": False})
        except ValidationError:  # another version's
            continue


def of_run(folders: Iterable[Path], root: str, run: str, but: str = "") -> tuple[ReportRead, ...]:
    """The reports of a run's exports in these folders, in the order of training, without that of the job `but`."""
    reports = [read for folder in dict.fromkeys(folders) if (read := read_report(folder)) is not None]
    mine = [read for read in reports if (read.root, read.run) == (root, run) and read.point.export != but]
    return tuple(sorted(mine, key=lambda read: read.point.place))


def published_of(journal: Journal, job: JobRow) -> tuple[ReportRead, ...]:
    """The reports of the latest exports of the job's run that were published, without its own: those that the journal knows, and those
    beside it, which `ckptd export` or a journal that was lost may have left."""
    folders = journal.jobs.published(job.checkpoint.root, job.checkpoint.run, MOST_STEPS)
    others = [folder for folder in (*folders, *beside(job.target)) if folder != job.target]  # what lies there gives way to this export
    return of_run(others, job.checkpoint.root, job.checkpoint.run, but=job.id)


def beside(target: Path) -> list[Path]:
    """The exports in the folder of `target`, the last ones that were published."""
    try:
        with os.scandir(target.parent) as entries:
            folders = [
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)
            ]
    except OSError:
        return []
    return [Path(path) for _, path in sorted(folders, reverse=True)[:_MOST_BESIDE]]


def figures_of_run(
    reports: Sequence[ReportRead], training: Sequence[tuple[int, Mapping[str, Any]]], best_variant: str, best_task: str = ""
) -> RunFigures:
    """What the reports say, with the exports that are gone by what the newest one remembers. `training`: as of `trainers_best`."""
    newest = max(reports, key=lambda read: read.point.finished, default=None)
    points = latest([*(read.point for read in reports), *(remembered(newest.path) if newest else ())])
    return RunFigures(points=points, trainers_best=trainers_best(training), best_variant=best_variant, best_task=best_task)


def trainers_best(training: Sequence[tuple[int, Mapping[str, Any]]]) -> int | None:
    """The best step that the trainer named last; None where it names none. `training`: step → what the trainer's state said there."""
    named = [step for _, state in sorted(training, key=lambda row: row[0]) if (step := best_step(state)) is not None]
    return named[-1] if named else None


def run_figures(journal: Journal, job: JobRow, best_variant: str, best_task: str = "") -> RunFigures:
    """What the report of a job is told of its run."""
    reports = published_of(journal, job)
    training = [(read.point.step, read.metadata) for read in reports] + [(job.checkpoint.step, job.checkpoint.metadata)]
    folders = {read.point.export: os.path.relpath(read.path, job.target) for read in reports}
    return figures_of_run(reports, training, best_variant, best_task).model_copy(update={"folders": folders})
