"""The composition root: builds the parts, owns signals, start-up and shutdown order.

Start: lock, journal, recovery, runner, notifier, watcher, ticks, READY. Stop: no new hints, no new work, children
end in order and are recorded as interrupted, the journal closes, the lock goes last.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from daemon import __version__, metrics, systemd
from daemon.durable import write_atomic
from daemon.intake import Intake
from daemon.journal import Journal
from daemon.notify import Notifier
from daemon.paths import Paths, prepare
from daemon.rows import now
from daemon.runner import Runner
from daemon.schedule import make_scheduler
from daemon.settings import Settings
from daemon.status import locked
from daemon.watch import Watcher

log = structlog.get_logger("daemon")

LIVE_SECONDS = 0.4
IDLE_SECONDS = 5.0


@dataclass
class Engine:
    """What the daemon and `ckptd export` share: journal, intake and runner on one state directory, locked."""

    settings: Settings
    paths: Paths
    journal: Journal
    intake: Intake
    runner: Runner
    attention: threading.Event


@contextmanager
def engine(settings: Settings, state: Path) -> Iterator[Engine]:
    """Lock, open and recover. Raises UsageError where a folder can't be written or another process holds the lock."""
    paths = prepare(state, settings.output.directory)
    with locked(paths.lock):
        journal = Journal(paths.journal)
        try:
            attention = threading.Event()
            runner = Runner(settings, journal, paths, changed=attention.set)
            runner.recover()
            yield Engine(settings, paths, journal, Intake(settings, journal, paths), runner, attention)
        finally:
            journal.close()


class Daemon:
    """The service: an engine with a watcher, a notifier and ticks."""

    def __init__(self, parts: Engine) -> None:
        self._parts = parts
        self._started = now()
        self._stop = threading.Event()
        self._watcher = Watcher(parts.settings, parts.intake, taken=parts.runner.wake)
        self._notifier = Notifier(parts.settings.notify, parts.journal)
        self._runner = threading.Thread(target=parts.runner.run, name="runner", daemon=True)
        rescan = parts.settings.watch.rescan_seconds
        self._ticks = make_scheduler({"outbox": (30.0, self._notifier.wake), "metrics": (15.0, self._write_metrics), "heartbeat": (
            max(5.0, rescan), self._check_journal)})  # fmt: skip
        self._journal_checked = time.monotonic()

    def run(self) -> None:
        """Serve until a signal says stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._runner.start()
        self._notifier.start()
        self._watcher.start()
        self._ticks.start()
        roots = {str(root): self._watcher.backend_of(root) for root in self._parts.settings.watch.roots}
        log.info("ckptd is watching", version=__version__, roots=roots, output=str(self._parts.paths.output),
                 state=str(self._parts.paths.state), variants=list(self._parts.settings.variants))  # fmt: skip
        self._write_live()
        systemd.notify("READY=1\nSTATUS=watching")
        try:
            self._serve()
        finally:
            self._shut_down()

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stop.set()
        self._parts.attention.set()

    def _serve(self) -> None:
        watchdog = systemd.watchdog_seconds()
        pause = min(IDLE_SECONDS, watchdog / 3) if watchdog else IDLE_SECONDS
        while not self._stop.is_set():
            self._parts.attention.wait(pause)
            self._parts.attention.clear()
            if self._stop.is_set():
                return
            self._write_live()
            self._notifier.wake()
            if watchdog and self.healthy():
                systemd.notify("WATCHDOG=1")
            self._stop.wait(LIVE_SECONDS)

    def _shut_down(self) -> None:
        systemd.notify("STOPPING=1")
        log.info("stopping", children=len(self._parts.runner.running))
        self._ticks.shutdown(wait=False)
        self._watcher.stop()
        self._parts.runner.stop()
        self._runner.join()
        self._notifier.stop()
        self._write_live()
        log.info("stopped")

    def healthy(self) -> bool:
        """Every thread lives, the roots were scanned and the journal took a read not long ago."""
        age = time.monotonic() - self._watcher.last_scan
        limit = 3 * self._parts.settings.watch.rescan_seconds + 60
        threads = (self._runner.is_alive(), self._watcher.thread.is_alive(), self._notifier.thread.is_alive())
        return all(threads) and age < limit and time.monotonic() - self._journal_checked < limit

    def _check_journal(self) -> None:
        self._parts.journal.seen("")
        self._journal_checked = time.monotonic()

    def _write_live(self) -> None:
        runner, watcher = self._parts.runner, self._watcher
        progress = {
            job: {
                "stage": running.stage, "attempt": running.number, "fraction": running.worker.progress.fraction,
                "message": running.worker.progress.message, "seconds": round(time.monotonic() - running.worker.started, 1),
                "pid": running.worker.process.pid,
            }
            for job, running in dict(runner.running).items()
        }  # fmt: skip
        live = {
            "pid": os.getpid(),
            "started": self._started,
            "time": now(),
            "healthy": self.healthy(),
            "roots": [
                {"path": str(root), "backend": watcher.backend_of(root), "exists": root.is_dir()}
                for root in self._parts.settings.watch.roots
            ],
            "incomplete": [
                {"path": str(path), "missing": list(entry.missing), "seconds": round(time.monotonic() - entry.since)}
                for path, entry in dict(watcher.tracker.incomplete).items()
            ],
            "progress": progress,
            "waiting": {job: waiting.fault.sentence() for job, waiting in dict(runner.waiting).items()},
        }
        try:
            write_atomic(self._parts.paths.live, json.dumps(live), durable=False)
        except OSError as error:
            log.warning("cannot write the live file; work goes on", error=str(error))

    def _write_metrics(self) -> None:
        file = self._parts.settings.metrics.textfile
        if file is None:
            return
        gauges = {
            "ckptd_children": float(len(self._parts.runner.running)),
            "ckptd_incomplete_checkpoints": float(len(self._watcher.tracker.incomplete)),
            "ckptd_outbox_pending": float(self._parts.journal.pending_messages()),
            "ckptd_last_scan_age_seconds": time.monotonic() - self._watcher.last_scan,
            "ckptd_resident_bytes": float(psutil.Process().memory_info().rss),
        }
        metrics.write(file, metrics.render(self._parts.journal.job_counts(), gauges))


def serve(settings: Settings) -> None:
    """Run the daemon in this process until it is told to stop."""
    with engine(settings, settings.state_directory) as parts:
        Daemon(parts).run()
