"""Maintains the journal: opens it in any state, checks it on a schedule, and backs it up.

A damaged journal is set aside, never deleted, and another takes its place: the newest sound backup, completed from what
is on disk, or what is on disk alone. A crash at any point of that is safe: `journal.suspect` stands until it is done.
Called at the daemon's start, under its lock and before anything else uses the journal; `JournalMaintenance` by its ticks.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from daemon.config.places.paths import Paths
from daemon.contract import units
from daemon.contract.disk import failpoints
from daemon.contract.disk.files import fsync_directory, fsync_file, write_atomic
from daemon.contract.faults.errors import CkptdError, Fault, Permanent, Retryable, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.values import Json
from daemon.journal.file import backups
from daemon.journal.file.database import Database, mark_suspect
from daemon.journal.file.opening import reading_as_it_is
from daemon.journal.file.upgrades import version_of
from daemon.journal.journal import Journal
from daemon.journal.legible import object_of
from daemon.journal.overview import REBUILT, JournalCare
from daemon.journal.rows import now
from daemon.journal.sql import schema_version
from daemon.operating.integrity.rebuild import Rebuilt, rebuild
from daemon.system.box import free_disk
from daemon.system.logger import Logger
from daemon.system.processes.threads import reason_of

log = Logger("journal")

DAMAGED = "damage"
BACKUPS = 3
"""That are kept: a day or so, in case damage is noticed late."""
TargetOf = Callable[[CheckpointRef], Path]


def open_journal(paths: Paths, *, target_of: TargetOf | None = None, reserve: int = 0) -> Journal:
    """Open the journal, rebuilt first where it is damaged or lost.

    `target_of`: where an export goes, for jobs of which nothing on disk tells it. `reserve`: bytes of free disk that a
    backup leaves alone. Raises UsageError for an unknown schema, Retryable where it can't be opened now.
    """
    suspicion = _suspicion(paths)
    why = _lost(paths)
    if why is None:
        try:
            _back_up_before_upgrade(paths, reserve)
            journal = Journal(paths.journal)
        except Permanent as error:
            if error.fault.code != FaultCode.JOURNAL_DAMAGED:
                raise
            why = error.fault.cause
        else:
            why = _still_wrong(journal, suspicion)
            if why is None:
                paths.suspect.unlink(missing_ok=True)
                return journal
            journal.close()
    _heal(paths, why, suspicion, target_of or (lambda seen: paths.output / seen.run / f"step-{seen.step}"))
    return Journal(paths.journal)


def _suspicion(paths: Paths) -> Json | None:
    """The record about the journal that the last process left; {} where it can't be read, None where there is none."""
    try:
        value = json.loads(paths.suspect.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _lost(paths: Paths) -> str | None:
    """Why there is no journal although there are traces of one; None where there is one, or where nothing began yet."""
    with suppress(FileNotFoundError):
        if paths.journal.stat().st_size > 0:
            return None
    traces = [paths.backups, paths.jobs, paths.pins]
    if any(folder.is_dir() and any(folder.iterdir()) for folder in traces):
        return "it is empty" if paths.journal.exists() else "it is gone"
    return None


def _still_wrong(journal: Journal, suspicion: Json | None) -> str | None:
    """Why a journal that could be opened must be rebuilt all the same; None where it need not be."""
    if suspicion is None:
        return None
    rebuilt = rebuilt_state(journal.database)
    if suspicion.get("rebuilding") and (rebuilt or {}).get("token") != suspicion["rebuilding"]:
        return str(suspicion.get("why", "its rebuilding was interrupted"))
    problems = journal.database.check(full=True)
    return "; ".join(problems[:3]) or None


def rebuilt_state(database: Database) -> Json | None:
    """How this journal was rebuilt after damage; None if it never was."""
    rows = database.read("SELECT value FROM control WHERE name = ?", REBUILT)
    return object_of(rows[0][0]) if rows else None


# Rebuilding


def _heal(paths: Paths, why: str, suspicion: Json | None, target_of: TargetOf) -> None:
    """Set the damaged journal aside and put another in its place."""
    token = str((suspicion or {}).get("rebuilding") or backups.timestamp())
    write_atomic(paths.suspect, json.dumps({"why": why, "at": now(), "rebuilding": token}))
    failpoints.point("journal-rebuild.marked")
    aside = _set_aside(paths)
    failpoints.point("journal-rebuild.set-aside")
    fresh = paths.state / "journal.rebuilding.sqlite3"
    source, result = _build(paths, fresh, {"token": token, "set_aside": str(aside) if aside else None, "why": why}, target_of)
    failpoints.point("journal-rebuild.built")
    _with_journal(paths.journal).unlink(missing_ok=True)  # it was set aside too; beside another file it would damage that one
    os.replace(fresh, paths.journal)
    fsync_directory(paths.state)
    failpoints.point("journal-rebuild.renamed")
    paths.suspect.unlink()
    log.critical(
        f"The journal could not be used ({why}). It was set aside and rebuilt from {source}; look at that disk.",
        event_id=Event.JOURNAL_REBUILT,
        code=FaultCode.JOURNAL_REBUILT,
        set_aside=str(aside) if aside else None,
        source=source,
        jobs_open=result.open,
        jobs_ended=result.ended,
        given_up=result.given_up,
        passed_over=result.skipped,
    )


def _with_journal(path: Path) -> Path:
    return path.with_name(path.name + "-journal")


def _set_aside(paths: Paths) -> Path | None:
    """A second name for the damaged file and for the rollback journal beside it; where that was done already, the same."""
    if not paths.journal.exists():
        return None
    for old in paths.state.glob("journal.damaged-*.sqlite3"):
        if old.samefile(paths.journal):
            return old
    aside = paths.state / f"journal.damaged-{backups.timestamp()}.sqlite3"
    if _with_journal(paths.journal).exists():
        os.link(_with_journal(paths.journal), _with_journal(aside))
    os.link(paths.journal, aside)
    fsync_directory(paths.state)
    return aside


def _build(paths: Paths, fresh: Path, facts: Json, target_of: TargetOf) -> tuple[str, Rebuilt]:
    """Make the new journal at `fresh`, durably; gives what it was made from and what is in it."""
    source = "disk"
    for backup in [*backups.listed(paths.backups), *sorted(paths.backups.glob("before-schema-*.sqlite3"), reverse=True)]:
        _clear(fresh)
        shutil.copyfile(backup, fresh)
        if _is_sound(fresh):
            source = "backup"
            break
        log.error("a backup of the journal is not valid", event_id=Event.JOURNAL_BACKUP_INVALID, path=str(backup))
    else:
        _clear(fresh)
    database = Database(fresh)
    try:
        result = rebuild(database, paths, target_of)
        value = {"at": now(), "from": source, "jobs": {"open": result.open, "ended": result.ended}, **facts}
        database.write("rebuilt", lambda c: c.execute(
            "INSERT OR REPLACE INTO control (name, value, at) VALUES (?,?,?)", (REBUILT, json.dumps(value), now()),
        ))  # fmt: skip
    finally:
        database.close()
    fsync_file(fresh)
    return source, result


def _clear(path: Path) -> None:
    path.unlink(missing_ok=True)
    _with_journal(path).unlink(missing_ok=True)


def _is_sound(path: Path) -> bool:
    """Whether a copy of a backup can be opened, migrated and trusted."""
    try:
        database = Database(path)
        try:
            return not database.check(full=True)
        finally:
            database.close()
    except (CkptdError, sqlite3.Error):
        return False


# Backups


def see_room(folder: Path, size: int, reserve: int) -> None:
    """Raises Retryable where a copy of `size` bytes would take what `limits.disk_reserve` keeps."""
    free = free_disk(folder)
    if free - size < reserve:
        raise Retryable(
            FaultCode.DISK_NOW, "back the journal up",
            f"it needs {units.size(size)}, {units.size(free)} are free and limits.disk_reserve reserves {units.size(reserve)}",
            "free space there; the next backup runs as scheduled", path=folder,
        )  # fmt: skip


def _back_up_before_upgrade(paths: Paths, reserve: int) -> None:
    """A copy of a journal of an earlier schema, so that the earlier version can be gone back to."""
    with suppress(FileNotFoundError), reading_as_it_is(paths.journal) as connection:
        version = version_of(connection)
        if not 0 < version < schema_version():
            return
        target = paths.backups / f"before-schema-{schema_version()}.sqlite3"
        try:
            see_room(paths.state, paths.journal.stat().st_size, reserve)
            backups.write_backup(connection, target)
            log.info("backed the journal up before its upgrade", event_id=Event.JOURNAL_BACKED_UP, path=str(target), schema=version)
        except (Retryable, OSError) as error:
            log.warning("the journal is upgraded without a backup", event_id=Event.JOURNAL_UPGRADED_WITHOUT_BACKUP, error=str(error))


@dataclass
class JournalMaintenance:
    """Checks and backs up an open journal on its schedule. Raises nothing: errors are logged and reported by `state`.

    `reserve`: bytes of free disk that are left alone; `refused`: called with what kept
    something from being written.
    """

    database: Database
    paths: Paths
    reserve: int = 0
    checked: str | None = None
    backed_up: str | None = None
    refused: Callable[[Fault], object] = lambda fault: None
    _problems: dict[str, str] = field(default_factory=dict)
    """What was being done → what is wrong, until that is done again and well."""

    @property
    def problem(self) -> str | None:
        """What is wrong, the worst first; None where nothing is."""
        return next(iter(sorted(self._problems.values(), key=lambda problem: problem != self._problems.get(DAMAGED))), None)

    def state(self) -> JournalCare:
        """For `ckptd status`."""
        rebuilt = None
        with self._note_failures("read the journal"):
            rebuilt = rebuilt_state(self.database)
        return JournalCare(self.checked, self.backed_up, self.problem, rebuilt)

    def check_integrity(self) -> None:
        """Check all of it; one that is damaged is rebuilt at the next start."""
        with self._note_failures("check the journal"):
            problems = self.database.check(full=True)
            if problems:
                self._damaged("; ".join(problems[:3]))
            else:
                self.checked = now()
                self._problems.pop(DAMAGED, None)

    def back_up(self) -> None:
        """Take a backup and remove the oldest; if no backup can be taken, the old ones stay."""
        with self._note_failures("back the journal up"):
            see_room(self.paths.state, self.paths.journal.stat().st_size, self.reserve)
            self.database.backup(backups.fresh_name(self.paths.backups))
            self.backed_up = now()
            backups.rotate(self.paths.backups, BACKUPS)

    @contextmanager
    def _note_failures(self, operation: str) -> Iterator[None]:
        try:
            yield
        except Permanent as error:
            self._damaged(error.fault.cause)
        except (CkptdError, OSError, sqlite3.Error) as error:
            if isinstance(error, (CkptdError, OSError)):
                ours = error if isinstance(error, CkptdError) else from_oserror(error, operation, str(self.paths.backups))
                self.refused(ours.fault)
            self._note(operation, str(error) if isinstance(error, CkptdError) else f"Could not {operation}: {error}.")
        except Exception as error:
            self._note(operation, f"Could not {operation}: {reason_of(error)}.", error)
        else:
            self._problems.pop(operation, None)

    def _note(self, operation: str, sentence: str, unforeseen: Exception | None = None) -> None:
        if sentence != self._problems.get(operation):
            log.error(sentence, event_id=Event.JOURNAL_CARE_FAILED, exc_info=unforeseen)
        self._problems[operation] = sentence

    def _damaged(self, why: str) -> None:
        sentence = f"The journal is damaged: {why}. Fix: restart ckptd, which sets it aside and rebuilds it."
        if sentence != self._problems.get(DAMAGED):
            log.critical(sentence, event_id=Event.JOURNAL_DAMAGED, code=FaultCode.JOURNAL_DAMAGED, path=str(self.paths.journal))
        self._problems[DAMAGED] = sentence
        mark_suspect(self.paths.suspect, why)
