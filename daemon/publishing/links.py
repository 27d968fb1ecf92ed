"""A run's links `latest` and `best` beside its exports. Called by `daemon.publishing.closing` once an export is in its place.

`latest` never goes back in the order of training. `best` goes where the trainer's own best checkpoint is, or, with
`select.best_by = "quality"`, to the export whose artifacts are the best by their own figures (`daemon.contract.jobs.run_figures`). Both can
be moved again after a crash: where they go follows from what is published alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from daemon.checkpoints.names import step_of
from daemon.checkpoints.selection import best_step
from daemon.config.export_names import clipped, is_marked, marked
from daemon.contract.events import Event
from daemon.contract.export_layout import manifest_of
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.run_figures import Standing, figure, standing
from daemon.journal.rows import JobRow
from daemon.publishing.exchange.beneath import Spot
from daemon.publishing.publication import is_export, link_beside
from daemon.publishing.run_figures import ReportRead, read_report

log = structlog.get_logger("runner")


@dataclass(frozen=True)
class ByQuality:
    """`best` follows the artifacts' own figures."""

    variant: str
    """`select.best_variant`."""
    others: Sequence[ReportRead]
    """The reports of the run's other exports."""


def _link(job: JobRow, target: Spot, name: str) -> Spot | None:
    """The run's link beside its exports; where several runs share the folder, the run's name is part of it.

    A link that leads to another run's export is that run's, and what is no link is not ours; None where nothing else is left.
    """
    run, leaf = job.checkpoint.run, Path(job.checkpoint.run).name
    shared = clipped(f"{run.replace('/', '-')}-{name}")
    own = target.path.parent.name == leaf or is_marked(target.path.parent.name)
    plain = name if own else shared
    names = (target.beside(one) for one in (plain, marked(plain, job.checkpoint.root, run)))
    return next((link for link in names if _is_free(link, job.checkpoint)), None)


def _is_free(link: Spot, seen: CheckpointRef) -> bool:
    if not os.path.lexists(link.at):
        return True
    manifest = manifest_of(link.at)
    return link.at.is_symlink() and manifest.get("run", seen.run) == seen.run and manifest.get("root", seen.root) == seen.root


def move_links(job: JobRow, target: Spot, by_quality: ByQuality | None = None) -> None:
    """Move the run's links, once the export of the job is at `target`; `by_quality`: `best` follows that and not the trainer."""
    wanted: list[tuple[str, Spot | None, Path]] = []
    latest = _link(job, target, "latest")
    if latest is None or _place_in_training(manifest_of(latest.at)) <= (job.checkpoint.step, job.checkpoint.ending, job.created):
        wanted.append(("latest", latest, target.path))
    if by_quality is not None:
        wanted += _best_by_quality(job, target, by_quality)
    elif best_step(job.checkpoint.metadata) == step_of(Path(job.checkpoint.path)) is not None:
        wanted.append(("best", _link(job, target, "best"), target.path))
    for name, link, path in wanted:
        if link is None:
            log.warning(
                "a run's link was not moved, since what lies under its names is not this run's",
                event_id=Event.LINK_NOT_MOVED,
                run=job.checkpoint.run,
                link=name,
                folder=str(target.path.parent),
            )
        else:
            link_beside(link, path)


def _best_by_quality(job: JobRow, target: Spot, rule: ByQuality) -> list[tuple[str, Spot | None, Path]]:
    """Where `best` goes, if it moves: only where figures say so, and never because there is nothing left to compare with."""
    link, mine = _link(job, target, "best"), read_report(target.at)
    there = {one.point.export: one for one in rule.others if is_export(one.path)}
    points = [*(one.point for one in there.values()), *([mine.point] if mine else [])]
    found = standing(points, rule.variant)
    if not isinstance(found, Standing):
        log.info(
            "the run's link `best` was not moved by quality", event_id=Event.BEST_UNKNOWN, run=job.checkpoint.run, reason=found.why
        )  # fmt: skip
        return []
    now = manifest_of(link.at) if link is not None else {}
    if now.get("export_id") == found.best.export:
        return []
    if now and len(found.ranked) == 1:  # texts or settings are new: one export alone is not better than those before
        why = "no other export has figures that can be compared with those of this one"
        log.info("the run's link `best` was not moved by quality", event_id=Event.BEST_UNKNOWN, run=job.checkpoint.run, reason=why)
        return []
    log.info(
        "the run's link `best` follows the quality of its artifacts", event_id=Event.BEST_MOVED, run=job.checkpoint.run,
        step=found.best.step, instead_of=now.get("step"), variant=found.variant, metric=found.metric,
        value=figure(found.value(found.best)), compared=len(found.ranked),
    )  # fmt: skip
    return [("best", link, target.path if mine and found.best.export == mine.point.export else there[found.best.export].path)]


def _place_in_training(manifest: Mapping[str, object]) -> tuple[int, bool, str]:
    """(step, whether it is what training ended with, when it was taken) of a published export, before every step where there is none.

    A training may leave several things at its end; of two of one step the one that was taken later is the later one.
    """
    step, taken = manifest.get("step"), manifest.get("taken")
    return step if isinstance(step, int) else -1, bool(manifest.get("ending")), taken if isinstance(taken, str) else ""
