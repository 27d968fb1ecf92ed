"""Another folder for a job whose run's folder was taken, after the job was entered, by a ckptd that publishes another training of the name.

The intake gives such a run a name of its own (`daemon.watching.taking.places`), but knows only the owners that had published something by
then.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from daemon.config.places.export_names import marked
from daemon.config.places.output_owners import is_anothers, is_other_training, owner_of
from daemon.config.places.paths import Paths
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.events import Event
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.system.logger import Logger

log = Logger("publish")

_ROUNDS = 64


def move_elsewhere(job: JobRow, journal: Journal, paths: Paths) -> JobRow | None:
    """Give a running job the folder that the intake would give it now; gives the job with that.

    None where the run's folder is nobody else's, or belongs to another ckptd that publishes this very training.
    """
    target = _free(job, paths)
    if target is None:
        return None
    journal.jobs.move(job.id, target)
    log.warning(
        "the run's folder was taken by another ckptd for another training of the same name; the export goes to another folder",
        event_id=Event.EXPORT_PLACE_TAKEN, path=job.checkpoint.path, taken=str(job.target), target=str(target),
    )  # fmt: skip
    return replace(job, target=target)


def _free(job: JobRow, paths: Paths) -> Path | None:
    """The first folder by the intake's names that no other training has; None where there is none, or where the present one is right."""
    plain = job.target.parent
    if paths.output not in plain.parents or not _is_other_trainings(plain, job, paths):
        return None
    folder = plain
    for number in range(_ROUNDS):
        folder = folder.with_name(marked(folder.name, job.checkpoint.root, job.checkpoint.run, str(number)))
        target = folder / job.target.name
        if _is_other_trainings(folder, job, paths):
            continue
        if folder.is_symlink() or job.checkpoint.other_than(manifest_of(target)) is not None:
            continue
        return target
    return None


def _is_other_trainings(folder: Path, job: JobRow, paths: Paths) -> bool:
    owner = owner_of(folder, job.checkpoint.run)
    return owner is not None and is_anothers(owner, paths, job.checkpoint) and is_other_training(owner, job.checkpoint)
