"""Reads what is on disk about the jobs, independent of the journal: job files, results, pins, published exports.

Called by `daemon.operating.integrity.rebuild`. Only reads. A file that can't be understood is skipped with a warning: one broken
file must not hide the rest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from daemon.config.places.paths import JOB_FILE, RESULT_FILE, Paths
from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.faults.events import Event
from daemon.contract.jobs.figures import ReportFigures, figures_of
from daemon.contract.jobs.messages import CheckpointRef, Outcome, StageResult
from daemon.contract.jobs.options import Work
from daemon.contract.values import Json
from daemon.journal.entries import ENTRY, JobEntry, _Tolerant
from daemon.system.logger import Logger

log = Logger("journal")

STATUSES = ("succeeded", "partial", "failed")


class _Facts(_Tolerant):
    target: str = ""
    warnings: tuple[str, ...] = ()


class _JobFile(_Tolerant):
    """Of a job file what is needed here, whatever version wrote it."""

    job: str
    stage: str
    attempt: int
    strategy: str = "default"
    key: str | None = None
    checkpoint: CheckpointRef
    pin: str
    base: str | None = None
    staging: str
    work: Json
    facts: _Facts | None = None


@dataclass(frozen=True)
class Tried:
    """One attempt. Times are ISO 8601 in UTC, taken from the files; `clock` is the job file's in seconds."""

    file: _JobFile
    folder: Path
    result: StageResult | None
    clock: float
    started: str
    ended: str | None

    @property
    def outcome(self) -> Outcome:
        """How it ended; an attempt without a result was cut off."""
        return self.result.outcome if self.result else Outcome.INTERRUPTED


@dataclass(frozen=True)
class FoundExport:
    """An export with its manifest. `report` is {} where it can't be read."""

    job: str
    status: str
    folder: Path
    clock: float
    report: Json = field(default_factory=dict)

    @property
    def ended(self) -> str:
        """When it was published."""
        return _iso(self.clock)


@dataclass(frozen=True)
class Remains:
    """All that is left of one job."""

    job: str
    checkpoint: CheckpointRef
    work: Work
    pin: Path | None
    created: str
    base: str | None = None
    target: Path | None = None
    warnings: tuple[str, ...] = ()
    fingerprint: str | None = None
    newest_first: bool = False
    tries: tuple[Tried, ...] = ()
    published: FoundExport | None = None

    def last(self, stage: str) -> Tried | None:
        """The latest attempt of a stage."""
        return max((tried for tried in self.tries if tried.file.stage == stage), key=lambda tried: tried.file.attempt, default=None)

    @property
    def pinned(self) -> bool:
        """Whether its pin still holds anything."""
        return self.pin is not None and holds_files(self.pin)

    @property
    def ended_as(self) -> str | None:
        """How the job ended, None where it did not: by its export, else by its report where nothing of it is pinned."""
        report = self.last("report")
        if self.published and not (self.pinned and any(tried.clock > self.published.clock for tried in self.tries)):
            return self.published.status
        if report and not self.pinned and report.result and report.result.outcome == Outcome.SUCCEEDED:
            figures = figures_of(report.result.figures, ReportFigures)
            return figures.status if figures else None
        return None


def holds_files(folder: Path) -> bool:
    """Whether anything is in a folder; not where it can't be read."""
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _iso(clock: float) -> str:
    return datetime.fromtimestamp(clock, UTC).isoformat(timespec="milliseconds")


def find(paths: Paths) -> tuple[list[Remains], int]:
    """Every job of which enough is left, the oldest first, and the number of files and folders passed over."""
    exports = {export.job: export for export in sorted(published(paths.output), key=lambda export: export.clock)}
    salvaged, skipped = [], 0
    for folder in sorted(paths.jobs.iterdir()) if paths.jobs.is_dir() else []:
        remains, lost = _of_folder(folder, exports.get(folder.name), paths)
        skipped += lost
        if remains:
            salvaged.append(remains)
            exports.pop(folder.name, None)
    for export in exports.values():
        remains = _of_export(export)
        skipped += remains is None
        if remains:
            salvaged.append(remains)
    return sorted(salvaged, key=lambda remains: (remains.created, remains.checkpoint.step, remains.job)), skipped


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _pass_over(path, str(error))
        return None


def _pass_over(path: Path, why: str) -> None:
    log.warning("passed over while the journal was rebuilt", event_id=Event.JOURNAL_PASSED_OVER, path=str(path), error=why[:300])


def _of_folder(folder: Path, export: FoundExport | None, paths: Paths) -> tuple[Remains | None, int]:
    """The job with attempts in `folder`, and how many of its files are of no use."""
    entry, lost = _entry(folder)
    tries = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir():
            tried = _tried(path, folder.name)
            lost += tried is None
            tries += [tried] if tried else []
    tries.sort(key=lambda tried: tried.clock)
    if entry is None and not tries:
        return None, lost or 1
    latest = tries[-1].file if tries else None
    facts = next((tried.file.facts for tried in reversed(tries) if tried.file.facts), None)
    target = facts.target if facts and facts.target else entry.target if entry else None
    checkpoint = entry.checkpoint if entry else tries[0].file.checkpoint
    return Remains(
        job=folder.name,
        checkpoint=checkpoint,
        work=Work.recovered(json.dumps(latest.work)) if latest else entry.work if entry else _no_work(),
        pin=Path(latest.pin if latest else entry.pin if entry else paths.pins / folder.name),
        created=entry.created if entry else tries[0].started,
        base=latest.base if latest else None,
        target=Path(target) if target else None,
        warnings=entry.warnings if entry else facts.warnings if facts else (),
        fingerprint=entry.fingerprint if entry else None,
        newest_first=entry.newest_first if entry else False,
        tries=tuple(tries),
        published=export,
    ), lost  # fmt: skip


def _no_work() -> Work:
    return Work.recovered("{}")


def _entry(folder: Path) -> tuple[JobEntry | None, int]:
    value = _read(folder / ENTRY)
    if value is None:
        return None, int((folder / ENTRY).exists())
    try:
        entry = JobEntry.model_validate({**value, "work": Work.recovered(json.dumps(value.get("work")))})
    except (ValidationError, TypeError, AttributeError) as error:
        _pass_over(folder / ENTRY, str(error))
        return None, 1
    return (entry, 0) if entry.job == folder.name else (None, 1)


def _tried(folder: Path, job: str) -> Tried | None:
    """The attempt in `folder`; None where its job file is missing, unreadable or of another job."""
    try:
        file = _JobFile.model_validate(_read(folder / JOB_FILE))
        clock = (folder / JOB_FILE).stat().st_mtime
    except (OSError, ValidationError) as error:
        _pass_over(folder, str(error))
        return None
    if file.job != job or folder.name != f"{file.stage}.{file.attempt}":
        _pass_over(folder, f"its job file is that of {file.job}, {file.stage}.{file.attempt}")
        return None
    result, ended = None, None
    try:
        result = StageResult.model_validate_json((folder / RESULT_FILE).read_bytes())
        ended = _iso((folder / RESULT_FILE).stat().st_mtime)
    except FileNotFoundError:
        pass
    except (OSError, ValidationError) as error:
        _pass_over(folder / RESULT_FILE, str(error))
    return Tried(file, folder, result, clock, _iso(clock), ended)


def published(output: Path) -> Iterator[FoundExport]:
    """Every export below `output` that has a manifest of ours."""
    for directory, folders, names in os.walk(output):
        if MANIFEST not in names:
            folders[:] = sorted(name for name in folders if not name.startswith("."))  # staging, kept outputs, half a swap
            continue
        folders.clear()
        value, path = _read(Path(directory, MANIFEST)), Path(directory)
        if isinstance(value, dict) and isinstance(value.get("export_id"), str) and value.get("status") in STATUSES:
            report = _read(path / "report.json")
            yield FoundExport(
                value["export_id"], value["status"], path, (path / MANIFEST).stat().st_mtime, report if isinstance(report, dict) else {}
            )
        elif value is not None:
            _pass_over(path / MANIFEST, "it is no manifest of an export")


def _of_export(export: FoundExport) -> Remains | None:
    """A job of which nothing but its export is left: what the report tells is enough not to export it again."""
    report = export.report
    try:
        base, seen = report["base"], report["checkpoint"]
        known = {name: seen[name] for name in ("root", "run", "step", "path", "layout", "digest", "method", "metadata")}
        checkpoint = CheckpointRef(**known, base_name=base["name"], base_revision=base["revision"], ending=bool(seen.get("ending")),
                                   weight=seen.get("weight", 1.0), additions=seen.get("additions", ()))  # fmt: skip
        work = Work.recovered(json.dumps(report["configuration"]))
        return Remains(export.job, checkpoint, work, None, str(report["created"]), base["folder"], published=export)
    except (KeyError, TypeError, ValidationError) as error:
        _pass_over(export.folder, f"its report does not tell what it was made from: {error!r}")
        return None
