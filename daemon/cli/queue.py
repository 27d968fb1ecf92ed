"""`ckptd queue retry | cancel | pause | resume | first`, and `ckptd reload`. Thin; `daemon.cli` registers them.

They write into the journal, where a running daemon finds it within seconds, or the next one at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from daemon.cli.common import ConfigOption, configuration_of, daemon_place, daemon_state, load_settings
from daemon.cli.parser.groups import place
from daemon.cli.parser.parsing import Group
from daemon.cli.views.markup import say, say_error
from daemon.contract.faults.errors import CkptdError, UsageError
from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import translated, translated_text

if TYPE_CHECKING:
    from daemon.journal.journal import Journal
    from daemon.operating.monitoring.status import JobDetails

Job = TypeVar("Job")
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


def scheduler_says(config: Path | None) -> Callable[[Path], str]:
    """What gives the end of what a scheduler says of the attempt with a log, "" of one of this machine."""

    def said(log: Path) -> str:
        from daemon.contract.jobs.processes.elsewhere import ORDERS
        from daemon.running.cluster.by_stage import tail_of

        return tail_of(load_settings(config, own_state=True).cluster, log.parent) if (log.parent / ORDERS).exists() else ""

    return said


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
    from daemon.operating.monitoring.meant import find_job

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


@_app.command(epilog="Example: ckptd queue retry my-run/500")
def retry(jobs: SomeJobs = None, failed: FailedOption = False, config: ConfigOption = None) -> None:
    """Put exports back into the queue.

    Those that failed, are partial or were cancelled; after a configuration change, any that ended.
    """
    from daemon.config.places.paths import existing
    from daemon.operating.asked import steering
    from daemon.operating.monitoring.meant import find_job
    from daemon.operating.monitoring.status import failed_ids
    from daemon.operating.reload import unread_change

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
    _each(dict.fromkeys(chosen), lambda job: steering.retry(settings, job))


@_app.command(epilog="Example: ckptd queue cancel my-run/500 my-run/600")
def cancel(jobs: Jobs, config: ConfigOption = None) -> None:
    """Cancel exports.

    They are stopped, their output is removed, and their checkpoints are not taken again automatically.
    """
    from daemon.operating.asked import steering

    state = daemon_state(config)
    chosen = _chosen(state, jobs)
    with _journal(state) as journal:
        _each(chosen, lambda job: steering.cancel(journal, job))


@_app.command(epilog="Example: ckptd queue pause")
def pause(job: MaybeJob = None, config: ConfigOption = None) -> None:
    """Start no new stages, of one job or of all jobs.

    Running stages end normally, and checkpoints are still taken.
    """
    from daemon.operating.asked import steering
    from daemon.operating.monitoring.meant import find_job

    state = daemon_state(config)
    with _journal(state) as journal:
        say(steering.pause_all(journal) if job is None else steering.pause(journal, find_job(state, job)))


@_app.command(epilog="Example: ckptd queue resume")
def resume(job: MaybeJob = None, config: ConfigOption = None) -> None:
    """Continue a paused job, or the paused queue."""
    from daemon.operating.asked import steering
    from daemon.operating.monitoring.meant import find_job

    state = daemon_state(config)
    with _journal(state) as journal:
        say(steering.resume_all(journal) if job is None else steering.resume(journal, find_job(state, job)))


@_app.command(epilog="Example: ckptd queue first my-run/500 my-run/600")
def first(jobs: Jobs, config: ConfigOption = None) -> None:
    """Move waiting exports to the front of the queue, the first one named before the others."""
    from daemon.operating.asked import steering

    state = daemon_state(config)
    chosen = _chosen(state, jobs)
    with _journal(state) as journal:
        _each(chosen[::-1], lambda job: steering.first(journal, job))


def reload(config: ConfigOption = None) -> None:
    """Make the daemon read its configuration again.

    It uses it if the whole file is valid.
    """
    from daemon.operating.reload import ask_for_reload

    file = configuration_of(config, of_daemon=True)
    try:
        state = load_settings(file, need_roots=True, of_daemon=True).state_directory
    except UsageError as mistake:
        changes = _refused_too(mistake, file)
    else:
        changes = ask_for_reload(state, file)
    if changes is not None:
        say(translated("The daemon uses the new configuration now."))
        for change in changes:
            say(f"  {translated_text(change)}")
    else:
        say(translated("The daemon has read its configuration again; nothing has changed in it."))


def _refused_too(mistake: UsageError, file: Path | None) -> tuple[str, ...] | None:
    """Let the daemon find the mistake too: its page, its metrics and `ckptd status` then say that it refused. Raises the mistake unless it
    takes the file over after all, since it has other variables."""
    from daemon.operating.reload import ask_for_reload

    try:
        return ask_for_reload(daemon_place(file).state, file)
    except CkptdError:
        raise mistake from None
