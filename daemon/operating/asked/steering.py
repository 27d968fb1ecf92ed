"""What people do to the queue: retry, cancel, pause, resume, first; each gives the sentence that says what was done.

Called by the verbs of `ckptd queue` and by the buttons of the page, so that both do the same and say it in the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated
from daemon.journal.states import OPEN_JOB, told_state

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.journal.journal import Journal
    from daemon.operating.monitoring.status import JobDetails


def retry(settings: Settings, job: str) -> str:
    """Put an export back into the queue. Raises UsageError as `retry_job`."""
    from daemon.operating.asked.retrying import retry_job  # with all that takes checkpoints, which the others do not need

    retry_job(settings, job)
    return translated("{job} is back in the queue.").format(job=job)


def cancel(journal: Journal, job: JobDetails) -> str:
    """Cancel an export. Raises UsageError for one that has ended."""
    if not journal.controls.cancel(job.id, "cancelled by hand"):
        raise _refuse(job, "cancel", "cancel only an export that waits or runs; to remove a finished export, delete its folder")
    return translated("{job} is cancelled; to continue it, run `ckptd queue retry {job}`.").format(job=job.id)


def pause(journal: Journal, job: JobDetails) -> str:
    """Start no new stages of an export. Raises UsageError for one that has ended."""
    if job.state not in OPEN_JOB:
        raise _refuse(job, "pause", "pause only an export that waits or runs")
    line = (
        translated("{job} is paused now; `ckptd queue resume {job}` continues it.")
        if journal.controls.pause(job.id, True)
        else translated("{job} was paused already; `ckptd queue resume {job}` continues it.")
    )
    return line.format(job=job.id)


def pause_all(journal: Journal) -> str:
    """Start no new stages of any export."""
    if journal.controls.pause_all(True):
        return translated("The queue is paused now; `ckptd queue resume` continues it.")
    return translated("The queue was paused already; `ckptd queue resume` continues it.")


def resume(journal: Journal, job: JobDetails) -> str:
    """Continue a paused export."""
    continues = journal.controls.pause(job.id, False)
    return (translated("{job} continues.") if continues else translated("{job} was not paused.")).format(job=job.id)


def resume_all(journal: Journal) -> str:
    """Continue the paused queue."""
    return translated("The queue continues.") if journal.controls.pause_all(False) else translated("The queue was not paused.")


def first(journal: Journal, job: JobDetails) -> str:
    """Move a waiting export to the front of the queue. Raises UsageError for one that does not wait."""
    if not journal.controls.prefer(job.id):
        raise _refuse(job, "put first", "use `ckptd queue first` only for an export that waits")
    line = translated("{job} is next after it is resumed.") if job.paused else translated("{job} is next.")
    return line.format(job=job.id)


def _refuse(job: JobDetails, operation: str, remedy: str) -> UsageError:
    cause = "it has begun, and is paused" if job.paused and job.state == "running" else told_state(job.state)
    return UsageError(FaultCode.WRONG_STATE, f"{operation} {job.id}", cause, remedy)
