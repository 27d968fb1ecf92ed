"""`ckptd queue retry | cancel | pause | resume | first`, and `ckptd reload`. Thin; `daemon.cli` registers them.

They write into the journal, where a running daemon finds it within seconds, or the next one at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from daemon.cli.common import ConfigOption, configuration_of, daemon_state, load_settings
from daemon.cli.parser.groups import place
from daemon.cli.parser.parsing import Group
from daemon.cli.views.markup import say, say_error
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import translated, translated_text
from daemon.journal.states import told_state

if TYPE_CHECKING:
    from daemon.journal.journal import Journal
    from daemon.operating.log.stage_log import Attempted
    from daemon.operating.monitoring.status import JobDetails

Job = TypeVar("Job")
OPEN = ("pending", "running")
_LISTED = 5
"""Jobs that are named where an id is not enough."""
JOB = "Id of the job, the beginning or last part of it, RUN/STEP, or the folder of the checkpoint or of the export."
JobArgument = Annotated[str, typer.Argument(help=JOB)]
Jobs = Annotated[list[str], typer.Argument(help=JOB)]
SomeJobs = Annotated[list[str] | None, typer.Argument(help=JOB)]
FailedOption = Annotated[bool, typer.Option("--failed", help="All exports that failed.")]
MaybeJob = Annotated[str | None, typer.Argument(help=f"{JOB} Default: all jobs.")]


_app = typer.Typer(
    name="queue", help="Retry, cancel, pause, resume exports; put one first.", no_args_is_help=True, cls=Group, rich_markup_mode=None
)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.add_typer(_app, **place("queue", "ckptd queue retry --failed"))
    app.command(**place("reload", "ckptd reload"))(reload)


def find_job(state: Path, wanted: str, *, by_hand: bool = False) -> JobDetails:
    """The one job of a state directory whose id is, or begins with, `wanted`. `by_hand`: also of exports in the foreground.

    Raises UsageError unless it is exactly one, and where there is no journal.
    """
    from daemon.config.places.paths import existing
    from daemon.operating.monitoring.status import find, find_made, ids

    refuse_no_id(wanted)
    jobs = (find_made if by_hand else find)(state, wanted)
    if not jobs:
        existing(state)
    if len(jobs) != 1:
        raise _not_one(wanted, ids(state, wanted) or [job.id for job in jobs])
    return jobs[0]


def refuse_no_id(wanted: str) -> None:
    """Raise UsageError for an id without a letter, as a variable that is not set gives one."""
    if not wanted.strip():
        raise UsageError(FaultCode.NO_SUCH_JOB, "find the job", "the id is empty", "give the id of a job; `ckptd list` shows the ids")


def in_log(state: Path, wanted: str) -> tuple[Path, str]:
    """The log that has the job which is meant by `wanted`, the daemon's or that of an export by hand, and what it calls the job. Raises
    UsageError where neither journals nor logs have one, of which the log may be the older.
    """
    from daemon.config.places.paths import StatePaths, existing, states_in
    from daemon.operating.log.logs import follow
    from daemon.operating.monitoring.status import ids

    refuse_no_id(wanted)
    for folder in states_in(state):
        named, log = ids(folder, wanted), StatePaths(folder).log
        if named or any(True for _ in follow(log, tail=1, forever=False, job=wanted)):
            return log, named[0] if len(named) == 1 else wanted
    existing(state)
    raise _not_one(wanted, [])


def attempted_at(state: Path, wanted: str | None, stage: str) -> Callable[[], Attempted]:
    """What gives the latest attempt at a stage of the job that is meant. Raises UsageError where there is no such stage."""
    from daemon.operating.log.stage_log import Attempted

    if wanted is None:
        raise _no_stage(stage, "no export is named")
    id = find_job(state, wanted, by_hand=True).id

    def look() -> Attempted:
        job = find_job(state, id, by_hand=True)
        now = next((row for row in job.stages if row.name == stage), None)
        if now is None:
            raise _no_stage(stage, f"the stages of {id} are {', '.join(row.name for row in job.stages)}")
        latest = max((row for row in job.attempts if row.stage == stage), key=lambda row: row.number, default=None)
        over = now.state not in OPEN or job.state not in OPEN
        doing = now.message or (job.waiting_for if now.state == "pending" else None) or ""
        return Attempted(latest.number, Path(latest.log), over, doing) if latest is not None else Attempted(0, state, over, doing)

    look()
    return look


def _no_stage(stage: str, cause: str) -> UsageError:
    return UsageError(FaultCode.NO_SUCH_STAGE, f"show what the stage {stage} prints", cause, "give the export with `--job`, and its stage")


def scheduler_says(config: Path | None) -> Callable[[Path], str]:
    """What gives the end of what a scheduler says of the attempt with a log, "" of one of this machine."""

    def said(log: Path) -> str:
        from daemon.contract.jobs.elsewhere import ORDERS
        from daemon.running.cluster.by_stage import tail_of

        return tail_of(load_settings(config, own_state=True).cluster, log.parent) if (log.parent / ORDERS).exists() else ""

    return said


def _not_one(wanted: str, matches: Sequence[str]) -> UsageError:
    listed = ", ".join(matches[:_LISTED]) + (f" and {len(matches) - _LISTED} more" if len(matches) > _LISTED else "")
    none = f"no job's id begins or ends with {wanted!r}"
    if "/" in wanted:
        none = f"{wanted!r} is no run and step of a job, and no folder of its checkpoint or its export"
    cause = f"{len(matches)} jobs are meant by {wanted!r}: {listed}" if matches else none
    return UsageError(FaultCode.NO_SUCH_JOB, "find the job", cause, "take an id from `ckptd list`, the last part of one, or RUN/STEP")


@contextmanager
def _journal(state: Path) -> Iterator[Journal]:
    from daemon.config.places.paths import existing
    from daemon.journal.journal import Journal

    journal = Journal(existing(state))
    try:
        yield journal
    finally:
        journal.close()


def _chosen(state: Path, wanted: Sequence[str]) -> list[JobDetails]:
    """The jobs that are meant, each once; none where one of them is not to be found."""
    return list({job.id: job for job in (find_job(state, name) for name in wanted)}.values())


def _each(jobs: Iterable[Job], act: Callable[[Job], str]) -> None:
    """Do something with each job and say what `act` gives. What is refused of some keeps nothing from the others."""
    refused: list[UsageError] = []
    for job in jobs:
        try:
            say(act(job))
        except UsageError as error:
            refused.append(error)
    for other in refused[:-1]:
        say_error(f"ckptd: {printable(translated_text(str(other)))}")
    if refused:
        raise refused[-1]


def _refuse(job: JobDetails, operation: str, remedy: str) -> UsageError:
    cause = "it has begun, and is paused" if job.paused and job.state == "running" else told_state(job.state)
    return UsageError(FaultCode.WRONG_STATE, f"{operation} {job.id}", cause, remedy)


@_app.command(epilog="Example: ckptd queue retry my-run/500")
def retry(jobs: SomeJobs = None, failed: FailedOption = False, config: ConfigOption = None) -> None:
    """Put exports back into the queue.

    Those that failed, are partial or were cancelled; after a configuration change, any that ended.
    """
    from daemon.config.places.paths import existing
    from daemon.operating.monitoring.status import failed_ids
    from daemon.operating.reload import unread_change
    from daemon.operating.retrying import retry_job

    settings = load_settings(config, of_daemon=True)
    existing(settings.state_directory)
    if not jobs and not failed:
        raise typer.BadParameter("name a job, or give --failed for all exports that failed; `ckptd list` shows the ids")
    chosen = [find_job(settings.state_directory, job).id for job in jobs or ()]
    chosen += failed_ids(settings.state_directory) if failed else []
    if change := unread_change(settings.state_directory):
        say_error(f"ckptd: {printable(translated_text(change))}")
    if not chosen:
        say(translated("No export has failed."))

    def put_back(job: str) -> str:
        retry_job(settings, job)
        return translated("{job} is back in the queue.").format(job=job)

    _each(dict.fromkeys(chosen), put_back)


@_app.command(epilog="Example: ckptd queue cancel my-run/500 my-run/600")
def cancel(jobs: Jobs, config: ConfigOption = None) -> None:
    """Cancel exports.

    They are stopped, their output is removed, and their checkpoints are not taken again automatically.
    """
    state = daemon_state(config)
    chosen = _chosen(state, jobs)
    with _journal(state) as journal:

        def end(job: JobDetails) -> str:
            if not journal.controls.cancel(job.id, "cancelled by hand"):
                raise _refuse(job, "cancel", "cancel only an export that waits or runs; to remove a finished export, delete its folder")
            return translated("{job} is cancelled; to continue it, run `ckptd queue retry {job}`.").format(job=job.id)

        _each(chosen, end)


@_app.command(epilog="Example: ckptd queue pause")
def pause(job: MaybeJob = None, config: ConfigOption = None) -> None:
    """Start no new stages, of one job or of all jobs.

    Running stages end normally, and checkpoints are still taken.
    """
    state = daemon_state(config)
    with _journal(state) as journal:
        if job is None:
            say(
                translated("The queue is paused now; `ckptd queue resume` continues it.")
                if journal.controls.pause_all(True)
                else translated("The queue was paused already; `ckptd queue resume` continues it.")
            )
            return
        details = find_job(state, job)
        if details.state not in OPEN:
            raise _refuse(details, "pause", "pause only an export that waits or runs")
        line = (
            translated("{job} is paused now; `ckptd queue resume {job}` continues it.")
            if journal.controls.pause(details.id, True)
            else translated("{job} was paused already; `ckptd queue resume {job}` continues it.")
        )
        say(line.format(job=details.id))


@_app.command(epilog="Example: ckptd queue resume")
def resume(job: MaybeJob = None, config: ConfigOption = None) -> None:
    """Continue a paused job, or the paused queue."""
    state = daemon_state(config)
    with _journal(state) as journal:
        if job is None:
            say(translated("The queue continues.") if journal.controls.pause_all(False) else translated("The queue was not paused."))
            return
        details = find_job(state, job)
        continues = journal.controls.pause(details.id, False)
        say((translated("{job} continues.") if continues else translated("{job} was not paused.")).format(job=details.id))


@_app.command(epilog="Example: ckptd queue first my-run/500 my-run/600")
def first(jobs: Jobs, config: ConfigOption = None) -> None:
    """Move waiting exports to the front of the queue, the first one named before the others."""
    state = daemon_state(config)
    chosen = _chosen(state, jobs)
    with _journal(state) as journal:

        def put_first(job: JobDetails) -> str:
            if not journal.controls.prefer(job.id):
                raise _refuse(job, "put first", "use `ckptd queue first` only for an export that waits")
            line = translated("{job} is next after it is resumed.") if job.paused else translated("{job} is next.")
            return line.format(job=job.id)

        _each(chosen[::-1], put_first)


def reload(config: ConfigOption = None) -> None:
    """Make the daemon read its configuration again.

    It uses it if the whole file is valid.
    """
    from daemon.operating.reload import ask_for_reload

    file = configuration_of(config, of_daemon=True)
    changes = ask_for_reload(load_settings(file, need_roots=True, of_daemon=True), file)
    if changes is not None:
        say(translated("The daemon uses the new configuration now."))
        for change in changes:
            say(f"  {translated_text(change)}")
    else:
        say(translated("The daemon has read its configuration again; nothing has changed in it."))
