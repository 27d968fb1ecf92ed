"""The watchers that `detection.py` compares: ckptd's own with a clock around its intake, and what people write instead."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from benchmarks._writers import STATE, WEIGHTS, read_checkpoint
from daemon.checkpoints.files import Fingerprint
from daemon.checkpoints.inspection import Inspection
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.watching.taking.intake import Intake
from daemon.watching.watcher import Watcher

DEBOUNCE = 1.0
Takes = list[tuple[str, str]]
"""(path, digest of what was read) for each time that a watcher took a checkpoint."""


def checkpoint_in(path: str) -> Path | None:
    """The checkpoint directory that holds `path`."""
    return next((parent for parent in (Path(path), *Path(path).parents) if parent.name.startswith("checkpoint-")), None)


@dataclass(frozen=True)
class TimedIntake(Intake):
    """The intake as it is, with the time at which it was asked and the time at which it had answered."""

    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)

    def take(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        asked = time.monotonic()
        job = super().take(root, inspection, fingerprint)
        if job is not None:
            self.times[str(inspection.path)] = (asked, time.monotonic())
            self.jobs.append(job)
        return job

    def takes(self) -> Takes:
        """What was pinned, read when the clock has stopped: nothing ends the jobs meanwhile."""
        rows = [row for job in self.jobs if (row := self.journal.jobs.get(job)) is not None]
        return [(row.checkpoint.path, read_checkpoint(row.pin)) for row in rows]


class Ckptd:
    """ckptd's watcher, with a real journal below `home`."""

    def __init__(self, home: Path, root: Path, settle: float, rescan: float = 3600.0) -> None:
        watch: dict[str, Any] = {"roots": (root,), "settle_seconds": settle, "rescan_seconds": rescan}
        settings = Settings(watch=watch, output={"directory": home / "exports"}, state={"directory": home / "state"})  # type: ignore[arg-type]
        paths = prepare(settings.state_directory, settings.output.directory)
        self.journal = Journal(paths.journal)
        self.intake = TimedIntake(settings, self.journal, paths)
        self.watcher = Watcher(settings, self.intake, taken=lambda: None)
        self.takes: Takes = []
        self.watcher.start()

    def stop(self) -> None:
        """End its threads."""
        self.watcher.stop()
        self.takes = self.intake.takes()
        self.journal.close()


class OnLastFile:
    """A plain watchdog handler that takes the checkpoint when its weights or its trainer's state are created or closed."""

    def __init__(self, root: Path) -> None:
        self.takes: Takes = []
        self._observer = _observe(root, self._event)

    def _event(self, event: FileSystemEvent) -> None:
        for path in (str(event.src_path), str(event.dest_path)):
            folder = checkpoint_in(path)
            if event.event_type in ("created", "closed", "moved") and Path(path).name in (WEIGHTS, STATE) and folder is not None:
                self.takes.append((str(folder), read_checkpoint(folder)))

    def stop(self) -> None:
        """End its threads."""
        self._observer.stop()
        self._observer.join()


class OnDebounce:
    """A watchdog handler that takes a checkpoint when there was no event of it for a second."""

    def __init__(self, root: Path) -> None:
        self.takes: Takes = []
        self._last: dict[Path, float] = {}
        self._ending = threading.Event()
        self._observer = _observe(root, self._event)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _event(self, event: FileSystemEvent) -> None:
        for path in (str(event.src_path), str(event.dest_path)):
            folder = checkpoint_in(path)
            if event.event_type in ("created", "modified", "moved") and folder is not None:
                self._last[folder] = time.monotonic()

    def _run(self) -> None:
        while not self._ending.wait(0.05):
            for folder, when in list(self._last.items()):
                if time.monotonic() - when > DEBOUNCE and folder.is_dir():
                    del self._last[folder]
                    self.takes.append((str(folder), read_checkpoint(folder)))

    def stop(self) -> None:
        """End its threads."""
        self._ending.set()
        self._thread.join()
        self._observer.stop()
        self._observer.join()


class OnWatchfiles:
    """`watchfiles.watch` with its own debounce (1.6 s): takes every checkpoint that a batch of changes names."""

    def __init__(self, root: Path, watch: Callable[..., Any]) -> None:
        self.takes: Takes = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(root, watch))
        self._thread.start()

    def _run(self, root: Path, watch: Callable[..., Any]) -> None:
        for changes in watch(root, stop_event=self._ending, rust_timeout=500):
            folders = {checkpoint_in(path) for _, path in changes}
            for folder in folders:
                if folder is not None and folder.is_dir():
                    self.takes.append((str(folder), read_checkpoint(folder)))

    def stop(self) -> None:
        """End its thread."""
        self._ending.set()
        self._thread.join()


def _observe(root: Path, react: Callable[[FileSystemEvent], None]) -> Any:
    class Handler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            react(event)

    observer = Observer()
    observer.schedule(Handler(), str(root), recursive=True)
    observer.start()
    return observer


def find_watchfiles(folder: Path) -> Callable[..., Any] | None:
    """`watchfiles.watch`, installed into `folder` where it is not there; None, with the reason printed, where that can't be had."""
    try:
        return importlib.import_module("watchfiles").watch  # type: ignore[no-any-return]
    except ImportError:
        pass
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder), "watchfiles"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    if done.returncode != 0:
        print(f"watchfiles is left out: it can't be installed here ({done.stderr.strip().splitlines()[-1]})")
        return None
    sys.path.append(str(folder))
    return importlib.import_module("watchfiles").watch  # type: ignore[no-any-return]
