"""The live file: what only the running daemon knows, for `ckptd status`. Rewritten when it changes and every half minute; nothing needs it.

The daemon writes it, `status`, `explain` and `reload` read it. What another version of ckptd wrote is read as far as it has these names.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from pydantic import TypeAdapter, ValidationError

from daemon.contract.files import write_atomic
from daemon.journal.overview import JournalCare
from daemon.journal.rows import now

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.running.runner import Runner
    from daemon.watching.watcher import Watcher

log = structlog.get_logger("daemon")

REWRITE_SECONDS = 30.0
LIST_SHARE = 20
_LISTS = ("incomplete", "passed_over")


@dataclass(frozen=True)
class ConfigLoad:
    """When the configuration was last read, and what was wrong with it then: the one before counts in that case."""

    at: str
    problem: str | None = None


@dataclass(frozen=True)
class RootState:
    """A watched directory."""

    path: str
    backend: str
    """How it is watched."""
    exists: bool


@dataclass(frozen=True)
class IncompleteState:
    """A directory that is not a complete checkpoint yet."""

    path: str
    missing: tuple[str, ...]
    """Why, as sentences."""
    seconds: int
    """How long it has been known."""


@dataclass(frozen=True)
class StageProgress:
    """What an attempt that runs now reported last."""

    attempt: int
    """Its number within the stage."""
    fraction: float
    message: str
    seconds: float
    """Since it was started."""
    id: str
    """As the executor knows it."""
    memory: int
    """Bytes that it held at the last look."""


@dataclass(frozen=True)
class LiveFile:
    """Its content. Times are ISO 8601 in UTC; everything is empty where no daemon runs."""

    pid: int | None = None
    started: str | None = None
    time: str | None = None
    """When this was written."""
    healthy: bool | None = None
    configuration: ConfigLoad | None = None
    journal: JournalCare | None = None
    roots: tuple[RootState, ...] = ()
    incomplete: tuple[IncompleteState, ...] = ()
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """Directory that holds a checkpoint and is not taken → why, and what to set."""
    progress: Mapping[str, Mapping[str, StageProgress]] = field(default_factory=dict)
    """Job → stage → its progress, of all that run."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Job → why none of its stages can start now."""
    listed: float = 0.0
    """Seconds between the time of the list `incomplete` and that of the file: its entries are known for so much longer."""


def live_file(
    settings: Settings, watcher: Watcher, runner: Runner, *, started: str, healthy: bool, loaded: ConfigLoad, care: JournalCare
) -> LiveFile:
    """The content at this moment, without the lists of directories (`LiveWriter`)."""
    progress: dict[str, dict[str, StageProgress]] = {}
    for (job, stage), running in dict(runner.children.running).items():
        said = running.attempt.progress
        seconds = round(time.monotonic() - running.began, 1)
        progress.setdefault(job, {})[stage] = StageProgress(
            running.id.number, said.fraction, said.message, seconds, running.attempt.id, running.attempt.memory
        )
    return LiveFile(
        pid=os.getpid(),
        started=started,
        time=now(),
        healthy=healthy,
        configuration=loaded,
        journal=care,
        roots=tuple(RootState(str(root), watcher.backend_of(root), root.is_dir()) for root in settings.watch.roots),
        progress=progress,
        waiting={job: waiting.fault.sentence() for job, waiting in dict(runner.waits.of).items()},
    )


class LiveWriter:
    """Writes the live file. What may be thousands of directories is put into words only when it has changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[list[tuple[Path, tuple[str, ...]]], dict[Path, str]] | None = None
        self._lists = ""
        self._listed = self._list_again = 0.0
        self._last: LiveFile | None = None
        self._written = float("-inf")

    def write(self, value: LiveFile, watcher: Watcher) -> None:
        """Replace the file by `value` with the watcher's directories, where anything but the time differs from what is there."""
        now = time.monotonic()
        changed = self._list(watcher, now)
        timeless = replace(value, time=None)
        if not changed and timeless == self._last and now - self._written < REWRITE_SECONDS:
            return
        small = {key: one for key, one in asdict(replace(value, listed=round(now - self._listed, 1))).items() if key not in _LISTS}
        written = _write(self._file, f"{self._lists}, {json.dumps(small)[1:]}")
        self._last, self._written = timeless if written else None, now

    def _list(self, watcher: Watcher, now: float) -> bool:
        """Whether the lists are others than those that were written last. Long ones are made anew for a twentieth of the time at most."""
        incomplete = dict(watcher.tracker.incomplete)
        seen = ([(path, entry.missing) for path, entry in incomplete.items()], watcher.tracker.passed_over)
        if seen == self._seen or now < self._list_again:
            return False
        states = [
            {"path": str(path), "missing": entry.missing, "seconds": round(now - entry.since)} for path, entry in incomplete.items()
        ]  # fmt: skip
        self._lists = json.dumps({"incomplete": states, "passed_over": {str(path): why for path, why in seen[1].items()}})[:-1]
        self._seen, self._listed, done = seen, now, time.monotonic()
        self._list_again = done + LIST_SHARE * (done - now)
        return True


def write_live(file: Path, value: LiveFile) -> None:
    """Replace the live file; where that fails, log it and go on."""
    _write(file, json.dumps(asdict(value)))


def _write(file: Path, text: str) -> bool:
    try:
        write_atomic(file, text, durable=False)
    except OSError as error:
        log.warning("cannot write the live file; work goes on", error=str(error))
        return False
    return True


def read_live(file: Path) -> LiveFile:
    """What the daemon wrote last; empty where that is nothing that this version can read."""
    try:
        return _reader().validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return LiveFile()


@functools.cache
def _reader() -> TypeAdapter[LiveFile]:
    return TypeAdapter(LiveFile)
