"""`ckptd explain PATH`: what is there, which layout, what is missing and since when, and what became of it.

Uses the same rules as the watcher (`daemon.checkpoints.inspection.inspect`) and reads the journal and the running daemon's
live file from outside. Writes nothing, neither into the state nor into the checkpoint.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from daemon.checkpoints.files import digest_of_fingerprint, export_files, fingerprint
from daemon.checkpoints.inspection import NO_ADAPTER_YET, Inspection, checkpoint_around, inspect, is_run_alone, why_unconfigured
from daemon.checkpoints.layouts import TABLE
from daemon.checkpoints.models.base_models import base_wanted, find_base, says_its_model
from daemon.checkpoints.names import is_checkpoint_name, run_of, step_of
from daemon.checkpoints.parts import belongs_to
from daemon.checkpoints.readable import closed_to_me
from daemon.checkpoints.selection import choice_for
from daemon.config.known import KnownSettings
from daemon.config.places.paths import StatePaths, foreground_state
from daemon.config.sources import RUN_FILE
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.faults.errors import CkptdError, Fault, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.plan import SHARDED
from daemon.contract.light import dataclass
from daemon.contract.sharded.lightning import SUFFIX as MODULE
from daemon.journal.file.opening import reading
from daemon.journal.overview import job_of_id, seen_as
from daemon.operating.monitoring.artifacts import Became, LostArtifact, became
from daemon.operating.monitoring.status import Snapshot, snapshot
from daemon.watching.entries import innermost_first, names_in
from daemon.watching.links import leading_out, link_above
from daemon.watching.scan import Scanner, ScanRules, rules_of

if TYPE_CHECKING:
    from daemon.config.known import AnySettings

RUN_SECONDS = 20.0
"""After so long no further checkpoint of a run is looked into: long training logs take seconds each."""
_SKEW_SECONDS = 5.0
"""By which a file server's clock may be before this one's without its times counting as wrong."""


@dataclass(frozen=True)
class FileRow:
    """A file or folder at the top level of a checkpoint; a folder's name ends in a slash."""

    name: str
    bytes: int | None
    """Its size; None for a folder."""
    read: bool
    """Whether an export reads it."""


@dataclass(frozen=True)
class Remembered:
    """The last decision about the directory."""

    by: Literal["daemon", "export"]
    """The journal with this decision: that of the daemon, or that of an export in the foreground."""
    verdict: str
    at: str
    """When; ISO 8601 in UTC."""
    job: str | None
    job_state: str | None
    current: bool
    """Whether the directory has not changed since then."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Variant → verdict, of the job."""
    lost: tuple[LostArtifact, ...] = ()
    """The variants that the job did not make or did not check, each with the stage that failed."""
    undecided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variant → the limits (`kl`, `agreement`, `perplexity`, `fine_tuning`) of which its check does not say whether it keeps them."""


@dataclass(frozen=True)
class Selected:
    """Whether `[select]` wants the checkpoint."""

    wanted: bool
    reason: str
    warning: str | None
    """What is wrong in the run's ckptd.toml."""


@dataclass(frozen=True)
class CheckpointExplanation:
    """Information about a checkpoint. The names are stable for programs."""

    kind: Literal["checkpoint"] = field(default="checkpoint", init=False)
    path: str
    layout: str | None
    """The layout that matches; None if no layout matches yet."""
    writer: str | None
    """The software that writes this layout."""
    run: str
    step: int
    method: str | None
    base: str | None
    base_folder: str | None
    """Folder of its base model; None if it needs none or none is found."""
    base_problem: str | None
    """Why its base is not found: the places that were searched, and what to do, as a sentence."""
    complete: bool
    missing: tuple[str, ...]
    """Why it is not complete, as sentences."""
    incomplete_seconds: int | None
    """Seconds since the daemon found it incomplete."""
    quiet_seconds: float | None
    """Seconds since the last change of a file that an export reads."""
    settles_in_seconds: float | None
    """Seconds until the daemon takes it, unless it changes again; None if the daemon is not waiting for this."""
    refusal: str | None
    """Why it can't be exported in its present form."""
    unreadable: str | None
    """Which user can't read it (the daemon's user, or the user of this command), which right on which path is missing, and what to do."""
    unmergeable: tuple[str, ...]
    """Why adapters of `merge.add` can't be merged with it, as sentences."""
    journal: Remembered | None
    selected: Selected | None
    """The decision of `[select]`; None while it is not known."""
    watched: bool
    """Whether scans of a watched root reach it."""
    unwatched: str | None
    """Why scans do not reach it, and what to do."""
    daemon_running: bool
    files: tuple[FileRow, ...]


@dataclass(frozen=True)
class RunExplanation:
    """Information about the checkpoints in a run, or on lower levels. The names are stable for programs."""

    kind: Literal["run"] = field(default="run", init=False)
    path: str
    complete: bool
    """Whether all of them are complete, and everything could be read."""
    checkpoints: tuple[CheckpointExplanation, ...]
    unreadable: tuple[str, ...]
    """What could not be read, as sentences."""


@dataclass(frozen=True)
class ExportExplanation:
    """Information about a folder of an export, which is no checkpoint. The names are stable for programs."""

    kind: Literal["export"] = field(default="export", init=False)
    path: str
    """The folder of the export."""
    id: str
    run: str
    step: int
    ending: bool
    """Whether its checkpoint was written at the end of the training."""
    status: str
    taken: str | None
    """When its checkpoint was taken; ISO 8601 in UTC."""
    checkpoint: str
    """The checkpoint that it was made of."""


def export_around(path: Path) -> ExportExplanation | None:
    """The export that a path is or lies in, by its own manifest; None where there is none."""
    path = Path(os.path.abspath(path))
    for folder in (path, *path.parents):
        manifest = manifest_of(folder)
        if isinstance(manifest.get("manifest_version"), int):
            step = manifest.get("step")
            return ExportExplanation(
                path=str(folder), id=str(manifest.get("export_id")), run=str(manifest.get("run")),
                step=step if isinstance(step, int) else 0, ending=manifest.get("ending") is True, status=str(manifest.get("status")),
                taken=str(taken) if (taken := manifest.get("taken")) else None, checkpoint=str(manifest.get("checkpoint")),
            )  # fmt: skip
    return None


def explain(settings: AnySettings, path: Path) -> CheckpointExplanation | RunExplanation:
    """What can be said of a directory: a checkpoint's facts, or, for a run or anything above, those of each checkpoint in it.

    A file stands for the directory around it, if it is a `.ckpt` file or lies in a checkpoint.
    Raises UsageError for a path that is not there and for any other file, and whatever keeps it from being read.
    """
    path = Path(os.path.abspath(path))
    if not os.path.exists(path):
        if (barred := closed_to_me(path)) is not None:
            raise UsageError(**barred.model_dump())
        raise UsageError(FaultCode.NO_SUCH_PATH, "explain", "there is no such file or directory", "check the path", path=path)
    folder = path if os.path.isdir(path) else path.parent
    unreadable: list[str] = []
    try:
        if folder != path and path.suffix != MODULE and checkpoint_around(path) is None:
            raise UsageError(
                FaultCode.NOT_A_DIRECTORY, "explain", "it is a file that does not belong to a checkpoint",
                "give the directory of a checkpoint or of a run", path=path,
            )  # fmt: skip
        inside = [] if is_checkpoint_name(folder.name) else _below(folder, settings, unreadable)
        live = snapshot(settings.state_directory, limit=0)
        own = _checkpoint(settings, folder, live)
    except OSError as error:
        raise from_oserror(error, "explain", str(folder)) from error
    if not inside:
        return own
    rows = [] if own.layout is None or belongs_to(str(folder), folder.name, names_in(folder)) else [own]
    end = time.monotonic() + RUN_SECONDS
    for place, checkpoint in enumerate(inside):
        if time.monotonic() > end:
            unreadable.append(_left_out(inside[place:]).sentence())
            break
        try:
            rows.append(_checkpoint(settings, checkpoint, live))
        except OSError as error:
            unreadable.append(from_oserror(error, "look into the checkpoint", str(checkpoint)).fault.sentence())
    rows = [row for row in rows if not _is_run_alone(row)]
    complete = all(row.complete for row in rows) and not unreadable
    return RunExplanation(str(folder), complete, tuple(rows), tuple(unreadable))


def _left_out(checkpoints: list[Path]) -> Fault:
    """What is said of those that there was no time for."""
    return UsageError(
        FaultCode.TIMEOUT, "look into all checkpoints", f"{len(checkpoints)} were left out, since those before took {RUN_SECONDS:.0f} s",
        f"name a directory below it, for example {checkpoints[0]}",
    ).fault  # fmt: skip


def _is_run_alone(row: CheckpointExplanation) -> bool:
    """Whether it is a run's own directory of which nothing is missing, as the watcher has it."""
    try:
        return row.missing == (NO_ADAPTER_YET,) and is_run_alone(inspect(Path(row.path)))
    except OSError:
        return False


def _below(folder: Path, settings: AnySettings, unreadable: list[str]) -> list[Path]:
    """The checkpoints in a run's directory or further down, as a scan finds them, in the order of their steps."""

    def note(error: OSError) -> None:
        unreadable.append(from_oserror(error, "list a directory", str(folder)).fault.sentence())

    scanner = Scanner(replace(_rules(settings), depth=0))
    checkpoints = [candidate.path for candidate in scanner.find(folder, note)]
    return sorted(
        checkpoints,
        key=lambda checkpoint: (str(run_of(checkpoint)), step_of(checkpoint) is None, step_of(checkpoint) or 0, checkpoint.name),
    )


def _checkpoint(settings: AnySettings, path: Path, live: Snapshot) -> CheckpointExplanation:
    mine = closed_to_me(path)
    # What can't be read has no content to speak of: only its name is known.
    inspection = inspect(path) if mine is None else Inspection(path, step=step_of(path) or 0, missing=(mine.cause,))
    unreadable = live.unreadable.get(str(path)) or (mine.sentence() if mine else None)
    layout = next((row for row in TABLE if row.name == inspection.layout), None)
    files, quiet = _files(path) if mine is None or os.access(path, os.R_OK | os.X_OK, effective_ids=True) else ((), None)
    rest = settings.watch.settle_seconds + inspection.patience_seconds
    unwatched = _unwatched(settings, path)
    watched = not (unwatched and settings.watch.roots)
    base_folder, base_problem = _base(settings, inspection)
    refusal = inspection.refusal or why_unconfigured(inspection, settings.base.map)
    waiting = inspection.complete and refusal is None and watched and quiet is not None and quiet < rest
    return CheckpointExplanation(
        path=str(path),
        layout=inspection.layout,
        writer=layout.writer if layout else None,
        run=run_of(path).name,
        step=inspection.step,
        method=inspection.method or None,
        base=inspection.base_name,
        base_folder=base_folder,
        base_problem=base_problem,
        complete=inspection.complete,
        missing=inspection.missing,
        incomplete_seconds=next((row.seconds for row in live.incomplete if row.path == str(path)), None),
        quiet_seconds=quiet,
        settles_in_seconds=round(rest - quiet, 1) if waiting and quiet is not None else None,
        refusal=refusal.sentence() if refusal else None,
        unreadable=unreadable,
        unmergeable=_unmergeable(settings, inspection),
        journal=_remembered(settings, path),
        selected=None if mine or (unwatched and settings.watch.roots) else _selection(settings, inspection),
        watched=not unwatched,
        unwatched=unwatched,
        daemon_running=live.daemon.running,
        files=files,
    )


def _unmergeable(settings: AnySettings, inspection: Inspection) -> tuple[str, ...]:
    """Why adapters of `merge.add` can't be merged with a complete checkpoint."""
    if not inspection.complete or inspection.refusal is not None or not (settings.merge.add or settings.merge.weight != 1):
        return ()
    from daemon.checkpoints.pinning.additions import problems_of  # with all that pins checkpoints

    return tuple(problems_of(settings.merge, settings.base, inspection))


def _base(settings: AnySettings, inspection: Inspection) -> tuple[str | None, str | None]:
    """The folder of a checkpoint's base, or why there is none, by the rules of an export."""
    if inspection.method is None:
        return None, None
    borrowed = any(path.name == "config.json" for path in inspection.borrowed)
    configured = borrowed or inspection.layout not in SHARDED or says_its_model(inspection.path)
    name = base_wanted(inspection.method, inspection.layout, inspection.base_name, settings.base.map, configured=configured)
    if name is None:
        return None, None
    try:
        return str(find_base(name, inspection.base_revision, settings.base.search, settings.base.map)), None
    except CkptdError as error:
        return None, error.fault.sentence()


def _rules(settings: AnySettings) -> ScanRules:
    return rules_of(settings.watch, StatePaths(settings.state_directory).state)


def _unwatched(settings: AnySettings, path: Path) -> str | None:
    """Why no scan of a watched root comes to the directory; None where one does."""
    roots = [root for root in innermost_first(settings.watch.roots) if root == path or root in path.parents]
    if not roots:
        real = next((root for root in settings.watch.roots if Path(os.path.realpath(root)) in Path(os.path.realpath(path)).parents), None)
        if real is not None:
            return f"it is below the root {real} only through a link; give its real path below that root"
        named = ", ".join(map(str, settings.watch.roots)) or "none"
        return f"it is not below any of watch.roots, which are: {named}"
    link = link_above(roots[0], path)
    if link is not None and not is_checkpoint_name(link.name) and settings.watch.links == "follow" and leading_out((str(link),), settings):
        return Scanner(replace(_rules(settings), linked=frozenset({link}))).why_not(link, path)
    return Scanner(_rules(settings)).why_not(roots[0], path)


def _files(path: Path) -> tuple[tuple[FileRow, ...], float | None]:
    """The top of the directory with what an export would read marked, and the seconds since any of that changed.

    None for these where nothing is read, or the latest time is one to come: of what an old archive or another clock wrote, no time tells.
    """
    names = export_files(path)
    read = {name.partition("/")[0] for name in names}
    rows: list[FileRow] = []
    newest = max((os.lstat(path / name).st_mtime for name in names), default=None)
    for entry in sorted(os.scandir(path), key=lambda item: item.name):
        status = entry.stat(follow_symlinks=False)
        folder = entry.is_dir(follow_symlinks=False)
        rows.append(FileRow(entry.name + "/" * folder, None if folder else status.st_size, entry.name in read))
    quiet = None if newest is None else time.time() - newest
    return tuple(rows), None if quiet is None or quiet < -_SKEW_SECONDS else round(max(0.0, quiet), 1)


def _selection(settings: AnySettings, inspection: Inspection) -> Selected | None:
    """Whether `[select]`, with the run's own configuration over it, wants the checkpoint; None while that can't be told."""
    if not inspection.complete or inspection.refusal is not None:
        return None
    run, select, warning = run_of(inspection.path), settings.select, None
    if os.path.lexists(run / RUN_FILE):
        from daemon.config.run_overrides import effective  # of all settings, which take longer to validate than all else takes

        mine = effective(settings.whole() if isinstance(settings, KnownSettings) else settings, run)
        select, warning = mine.settings.select, mine.warning
    choice, _ = choice_for(inspection, select)
    return Selected(choice.wanted, choice.reason, warning)


def _remembered(settings: AnySettings, path: Path) -> Remembered | None:
    """What the daemon's journal, else that of a foreground export, holds of the directory."""
    state = settings.state_directory
    journals: tuple[tuple[Literal["daemon", "export"], Path], ...] = (("daemon", state), ("export", foreground_state(state, path)))
    for by, folder in journals:
        try:
            with reading(StatePaths(folder).journal) as connection:
                row = seen_as(connection, str(path))
                view = job_of_id(connection, row.job) if row is not None and row.job else None
        except (FileNotFoundError, sqlite3.OperationalError):
            continue  # no journal there, or one that can't be read now
        if row is not None:
            current = os.access(path, os.R_OK | os.X_OK) and row.fingerprint == digest_of_fingerprint(fingerprint(path))
            variants = became(view) if view is not None else Became()
            became_of = variants.verdicts, variants.lost, variants.undecided
            return Remembered(by, row.verdict, row.at, row.job, row.job_state, current, *became_of)
    return None
