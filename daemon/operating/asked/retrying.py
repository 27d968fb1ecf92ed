"""`ckptd queue retry`: a job that has ended goes back into the queue of the daemon's journal, with its checkpoint pinned again."""

from __future__ import annotations

from pathlib import Path

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.inspection import inspect
from daemon.checkpoints.pinning.additions import pin_again
from daemon.checkpoints.pinning.pins import Moved, held, identify, make_pin
from daemon.config.places.paths import existing, prepare
from daemon.config.settings import Settings
from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.plan import stage_names
from daemon.journal.jobs import RETRIED
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.journal.states import told_state
from daemon.operating.work_now import work_now


def retry_job(settings: Settings, job: str) -> None:
    """Pin the checkpoint of an ended job again and put the job back in the queue of the daemon's journal.

    Raises UsageError when there is nothing to retry, or its checkpoint is gone or has other content by now.
    """
    paths = prepare(settings.state_directory, settings.output.directory)
    journal = Journal(existing(settings.state_directory))
    operation = f"retry {job}"
    try:
        # A daemon that starts, or has just ended the job, removes the pin of a job that is not open; a second `retry` would replace it.
        with held(paths.pins_lock):
            row = journal.jobs.get(job)
            work = work_now(settings, row) if row else None
            changed = work is not None and row is not None and work != row.work
            if row is None or row.state not in RETRIED or (row.state == "succeeded" and not changed):
                remedy = "retry an export that failed, is partial or was cancelled, or one whose configuration has changed since"
                if row is not None and row.state in ("pending", "running"):  # one that failed still has its report to write
                    remedy = "wait until it has ended, which `ckptd status` shows, or cancel it; then retry it"
                raise UsageError(FaultCode.NOTHING_TO_RETRY, operation, told_state(row.state if row else "unknown"), remedy)
            if row.untidy:
                raise _not_yet(operation)
            _pin_again(row, _where(row, journal), operation)
            work = work or row.work
            names = stage_names(work, row.checkpoint.layout)
            if not journal.jobs.retry(job, work, names):
                if job not in journal.jobs.open_ids():
                    remove_tree(row.pin)
                raise _not_yet(operation)
    finally:
        journal.close()


def _where(row: JobRow, journal: Journal) -> Path:
    """Where the job's checkpoint lies: in the directory in which it was taken, unless its run has got another name since."""
    taken, places = row.checkpoint.path, journal.sightings.places(row.id)
    return Path(taken if taken in places else next(iter(places), taken))


def _pin_again(row: JobRow, checkpoint: Path, operation: str) -> None:
    try:
        make_pin(checkpoint, row.pin, fingerprint(checkpoint), borrowed=inspect(checkpoint).borrowed, top=Path(row.checkpoint.root))
        same = identify(row.pin) == row.checkpoint.digest
    except (OSError, Moved):
        same = False
    try:
        added = not same or pin_again(row.checkpoint.additions, row.pin)
    except (OSError, Moved):
        added = False
    if not added:
        remove_tree(row.pin)
        raise UsageError(
            FaultCode.CHECKPOINT_GONE, operation,
            "an adapter to merge with the checkpoint's own was deleted, is damaged, or its content has changed since",
            "run `ckptd export` on the checkpoint, which uses the adapter as it is now", path=checkpoint,
        )  # fmt: skip
    if not same:
        remove_tree(row.pin)
        raise UsageError(
            FaultCode.CHECKPOINT_GONE, operation, "its checkpoint was deleted, is damaged, or its content has changed",
            "train or copy that checkpoint again; it is then exported automatically", path=checkpoint,
        )  # fmt: skip


def _not_yet(operation: str) -> UsageError:
    return UsageError(FaultCode.NOT_YET, operation, "its files are still being removed", "try again in a moment")
