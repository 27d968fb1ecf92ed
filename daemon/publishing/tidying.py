"""What an ended job leaves and needs no more is removed: staging, pin, temporary files. Logs and job files stay."""

from __future__ import annotations

from pathlib import Path

from daemon.checkpoints.pins import held
from daemon.config.paths import Paths
from daemon.contract.files import remove_tree
from daemon.contract.own_folders import own
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.publishing.exchange.swap import complete_swap
from daemon.publishing.lending import PUBLISH


def clear_staging(output: Path, staging: Path) -> None:
    """Remove the staging folder of a job that needs it no more. What a publication that was cut off left in it may be people's: that is
    set aside first. Raises OSError, also where the whole output is away, Permanent where it is not ours."""
    try:
        with own(output, staging.parent) as around:
            complete_swap(around / staging.name / PUBLISH)
            remove_tree(around / staging.name)
    except FileNotFoundError:
        if not output.is_dir():  # what is in it comes back with it
            raise


def tidy_job(job: JobRow, journal: Journal, paths: Paths) -> bool:
    """Remove what a finished job needs no more: staging, pin, temporary files. Logs and job files stay.

    The pin of a job that was put back in the queue since is a new one, and stays. Gives False where `ckptd retry` pins one just now:
    the job's may be it, so its turn comes later.
    """
    with held(paths.pins_lock, patience=0) as mine:
        if not mine:
            return False
        if job.id in journal.jobs.open_ids():
            return True
        remove_tree(job.pin)
    clear_staging(paths.output, paths.staging / job.id)
    for folder in (paths.jobs / job.id).glob("*/tmp"):
        remove_tree(folder)
    return True
