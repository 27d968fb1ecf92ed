"""A run's links `latest` and `best` beside its exports. Called by `daemon.publishing.publication` once an export is in its place.

`latest` never goes back in the order of training. `best` goes where the trainer's own best checkpoint is, or, with
`select.best_by = "quality"`, to the export that the report and `ckptd quality` advise to deploy (`daemon.contract.advice.which`). Both can
be moved again after a crash: where they go follows from what is published alone.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.checkpoints.selection import best_step
from daemon.config.places.export_names import clipped, is_marked, marked
from daemon.contract import units
from daemon.contract.advice.which import Standing, standing
from daemon.contract.disk import failpoints
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.disk.files import dead_temporaries, fsync_directory, temporary_of
from daemon.contract.faults.events import Event
from daemon.contract.jobs.messages import CheckpointRef
from daemon.journal.rows import JobRow
from daemon.publishing.exchange.beneath import Held, Spot
from daemon.publishing.exchange.ours import is_export
from daemon.publishing.run_figures import ReportRead, read_report, trainers_best
from daemon.system.logger import Logger

log = Logger("runner")


@dataclass(frozen=True)
class ByQuality:
    """`best` follows the artifacts' own figures."""

    variant: str
    """`select.best_variant`."""
    others: Sequence[ReportRead]
    """The reports of the run's other exports."""
    task: str = ""
    """The task that `select.best_by` names; "" where it names none."""


def move_links(job: JobRow, around: Held, export: str, by_quality: ByQuality | None = None) -> None:
    """Move the run's links in the folder `around`, once the job's export lies in it as `export`.

    `by_quality`: `best` follows that and not the trainer.
    """
    latest, mine = _link(job, around, "latest"), around.path / export
    if latest is None or _place_in_training(manifest_of(latest.at)) <= (job.checkpoint.step, job.checkpoint.ending, job.created):
        _move("latest", latest, mine, job)
    if by_quality is not None:
        best = _best_by_quality(job, around, around.spot(export), by_quality)
    else:
        best = mine if not job.checkpoint.ending and best_step(job.checkpoint.metadata) == job.checkpoint.step else None
    if best is not None:
        _move("best", _link(job, around, "best"), best, job)


def links_from_inside(job: JobRow) -> dict[str, str]:
    """`latest` and `best` → that link of the run, as a path from inside the job's export; "" where there is none.

    `latest` is given also where it is still to be made: the first export's report is published before that.
    """
    around = Held(job.target.parent, job.target.parent)
    try:
        latest, best = (_link(job, around, name) for name in ("latest", "best"))
    except OSError:  # the output is away: a report without links is better than none
        return {"latest": "", "best": ""}
    return {
        "latest": f"../{latest.path.name}" if latest is not None else "",
        "best": f"../{best.path.name}" if best is not None and os.path.exists(best.at) else "",
    }


def _link(job: JobRow, around: Held, name: str) -> Spot | None:
    """The run's link beside its exports; where several runs share the folder, the run's name is part of it.

    A link that leads to another run's export is that run's, and what is no link is not ours; None where nothing else is left.
    """
    run, leaf = job.checkpoint.run, Path(job.checkpoint.run).name
    is_own = around.path.name == leaf or is_marked(around.path.name)
    plain = name if is_own else clipped(f"{run.replace('/', '-')}-{name}")
    links = (around.spot(choice) for choice in (plain, marked(plain, job.checkpoint.root, run)))
    return next((link for link in links if _is_free(link, job.checkpoint)), None)


def _is_free(link: Spot, seen: CheckpointRef) -> bool:
    if not os.path.lexists(link.at):
        return True
    manifest = manifest_of(link.at)
    return link.at.is_symlink() and manifest.get("run", seen.run) == seen.run and manifest.get("root", seen.root) == seen.root


def _move(name: str, link: Spot | None, target: Path, job: JobRow) -> None:
    if link is not None:
        link_to(link, target)
        return
    log.warning(
        "a run's link was not moved, since what lies under its names is not this run's", event_id=Event.LINK_NOT_MOVED,
        run=job.checkpoint.run, link=name, folder=str(job.target.parent),
    )  # fmt: skip


def link_to(link: Spot, target: Path) -> None:
    """Point the symlink `link` at `target` (in the same folder or below), atomically. A real file there is left alone."""
    if os.path.lexists(link.at) and not link.at.is_symlink():
        raise FileExistsError(errno.EEXIST, "is in the way of the symlink and was not made by ckptd", str(link.path))
    for left in dead_temporaries(link.at.parent):
        if left.name.startswith(f".{link.path.name}.") and left.is_symlink():
            left.unlink(missing_ok=True)
    temporary = temporary_of(link.at.with_name(f"{link.at.name}.{secrets.token_hex(4)}"))  # a name that nobody else has
    failpoints.point("publish.before-link")
    temporary.symlink_to(os.path.relpath(target, link.path.parent))
    failpoints.point("publish.link-made")
    os.replace(temporary, link.at)
    failpoints.point("publish.linked")
    fsync_directory(link.at.parent)
    failpoints.point("publish.link-durable")


def _best_by_quality(job: JobRow, around: Held, target: Spot, rule: ByQuality) -> Path | None:
    """Where `best` goes, if it moves: only where figures say so, and never because there is nothing left to compare with."""
    link, mine = _link(job, around, "best"), read_report(target.at)
    there = {report.point.export: report for report in rule.others if is_export(report.path)}
    training = [(report.point.step, report.metadata) for report in rule.others] + [(job.checkpoint.step, job.checkpoint.metadata)]
    points = [*(report.point for report in there.values()), *([mine.point] if mine else [])]
    ranking = standing(points, trainers_best(training), rule.variant, rule.task)
    if not isinstance(ranking, Standing):
        log.info("the run's link `best` was not moved by quality", event_id=Event.BEST_UNKNOWN, run=job.checkpoint.run, reason=ranking.why)
        return None
    now = manifest_of(link.at) if link is not None else {}
    if now.get("export_id") == ranking.pick.export:
        return None
    if now and len(ranking.ranked) == 1:  # texts or settings are new: one export alone is not better than those before
        why = "no other export has figures that can be compared with those of this one"
        log.info("the run's link `best` was not moved by quality", event_id=Event.BEST_UNKNOWN, run=job.checkpoint.run, reason=why)
        return None
    log.info(
        "the run's link `best` follows the quality of its artifacts", event_id=Event.BEST_MOVED, run=job.checkpoint.run,
        step=ranking.pick.step, instead_of=now.get("step"), variant=ranking.variant, metric=ranking.metric,
        value=units.number(ranking.value(ranking.pick)), compared=len(ranking.ranked),
    )  # fmt: skip
    return target.path if mine and ranking.pick.export == mine.point.export else there[ranking.pick.export].path


def _place_in_training(manifest: Mapping[str, object]) -> tuple[int, bool, str]:
    """(step, whether it is what training ended with, when it was taken) of a published export, before every step where there is none.

    A training may leave several things at its end; of two of one step the one that was taken later is the later one.
    """
    step, taken = manifest.get("step"), manifest.get("taken")
    return step if isinstance(step, int) else -1, bool(manifest.get("ending")), taken if isinstance(taken, str) else ""
