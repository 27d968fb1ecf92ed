"""`ckptd export`: the same journal, intake and runner as the daemon's, for one checkpoint.

An export in the foreground has a journal of its own per checkpoint below the state directory, so it neither
disturbs a running daemon nor waits for it, and an interrupted one goes on where it was. What the daemon makes just now is followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from daemon.cli.export.checkpoint_argument import checkpoint_at
from daemon.cli.export.entry import enter
from daemon.cli.export.following import follow
from daemon.cli.export.options import base_here, over
from daemon.cli.export.working import work
from daemon.cli.views.export import ExportView
from daemon.config.places.paths import Paths, StatePaths, foreground_state, prepare
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Permanent, Retryable, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated, translated_text
from daemon.contract.values import Json
from daemon.operating.diagnosis import packages
from daemon.operating.engine import Engine, engine
from daemon.operating.log import logs
from daemon.operating.monitoring.status import JobStatus, find
from daemon.system.elsewhere import elsewhere
from daemon.system.filesystems.private import private_files
from daemon.system.lock import holder
from daemon.toolchains.overview import lacking_for
from daemon.toolchains.registry import Toolchains
from daemon.watching.taking.intake import damaged


@dataclass(frozen=True)
class ExportedJob(JobStatus):
    """A job that was exported in the foreground."""

    report: Json | None
    """The contents of its report.json; None if there is no report."""


def export_now(
    settings: Settings, checkpoint: Path, *, output: Path | None, base: Path | None, add: Sequence[str] = (), force: bool,
    quiet: bool = False,
) -> ExportedJob:  # fmt: skip
    """Export one checkpoint; gives its job with its report. `add`: adapters as PATH or PATH=WEIGHT, in place of `merge.add`.

    Raises UsageError for a path that is no checkpoint, Permanent for one that is incomplete or damaged (nothing is written) or can't be
    merged with what is to be added, Retryable when disk or memory are lacking now.
    """
    inspection = checkpoint_at(Path(os.path.abspath(checkpoint)))
    if not inspection.complete:
        raise Permanent(**damaged(inspection, then="then run the same command again").model_dump())
    here = base_here(settings, inspection) if base is None else None
    settings = over(settings, inspection, output=output, base=base or here, add=add)
    checkpoint = inspection.path
    state = foreground_state(settings.state_directory, checkpoint)
    with _opened(settings, state, checkpoint) as parts:
        logs.say_closed(parts.paths.closed)
        entered = enter(parts, inspection, force=force)
        view = ExportView(inspection, StatePaths(entered.state).log, quiet=quiet)
        if here is not None:
            view.say(translated("its base is {folder}, below the current directory").format(folder=here))
        if entered.finished and entered.by_daemon:
            view.say(translated("the daemon has exported it already; --force makes it again"))
        elif entered.finished:
            view.say(translated("already exported; --force makes it again"))
        elif not entered.by_daemon:
            if not settings.toolchains.auto_install:
                for sentence in lacking_for(settings.variants, Toolchains(settings.state_directory)):
                    view.say(translated_text(f"{sentence}."))  # now, and not when the other variants are made
            work(parts, entered.job, view)
    if entered.by_daemon and not entered.finished:
        follow(entered.state, entered.job, view)  # with the lock given back, so that several commands can follow
    (status,) = find(entered.state, entered.job)
    if status.state != "succeeded":
        for sentence in packages.unsuitable():
            view.say(translated_text(f"{sentence}."))
    report = Path(status.target) / "report.json"
    known = {field.name: getattr(status, field.name) for field in fields(JobStatus)}
    value = ExportedJob(**known, report=json.loads(report.read_bytes()) if report.is_file() else None)
    view.finish(value, value.report)
    return value


@contextmanager
def _opened(settings: Settings, state: Path, checkpoint: Path) -> Iterator[Engine]:
    """The engine of one export, whose log goes to its file alone: also what is said while an interrupted export is taken up.

    Retryable where the same checkpoint is being exported by another command.
    """
    paths = prepare(state, settings.output.directory)
    with private_files():
        logs.set_up(settings.log, paths.log, stderr=False)
    try:
        with engine(settings, state, work_of=lambda now, job: now.work, at_once=True) as parts:
            try:
                yield parts
            finally:
                _clear(parts.paths)
    except UsageError as error:
        if error.fault.code != FaultCode.ALREADY_RUNNING:
            raise
        other = elsewhere(state)
        who = f"{other.pid} on {other.host}" if other else holder(paths.lock)[0] or "unknown"
        cause = f"another `ckptd export` (pid {who}) exports it just now"
        remedy = "wait until that has ended, or stop it; then run the command again"
        raise Retryable(FaultCode.ALREADY_RUNNING, "export", cause, remedy, path=checkpoint) from None


def _clear(paths: Paths) -> None:
    """Remove the folders for unpublished output that are empty: nobody expects them in a folder that was named for one export."""
    for folder in (paths.staging, paths.kept):
        with suppress(OSError):  # there is something in it, or the output is away
            folder.rmdir()
            folder.parent.rmdir()
