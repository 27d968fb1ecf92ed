"""The composition root: builds the parts, owns signals, start-up and shutdown order.

Start: lock, journal, recovery, runner, notifier, watcher, ticks, READY. Stop: no new hints, no new work, children
end at their next safe point and are recorded as interrupted, the journal closes, the lock goes last. A second
signal ends the children at once. SIGHUP reads the configuration again and takes it over if all of it is valid.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog

from daemon.checkpoints.names import run_of
from daemon.config.paths import Paths, prepare
from daemon.config.run_overrides import effective
from daemon.config.settings import Settings
from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.options import Work
from daemon.contract.version import __version__
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, now
from daemon.operating import logs, metrics, systemd
from daemon.operating.integrity.maintenance import JournalMaintenance, open_journal
from daemon.operating.live import ConfigLoad, LiveWriter, live_file
from daemon.operating.reload import changed_for_good, reread
from daemon.operating.ticks import Ticks
from daemon.publishing.notifier import Notifier
from daemon.running.executor import Executor
from daemon.running.runner import Runner
from daemon.running.workers.executor import LocalExecutor
from daemon.system.allocator import give_back_early
from daemon.system.lock import locked
from daemon.system.rounds import Complaints
from daemon.watching.intake import Intake, target_of
from daemon.watching.watcher import Watcher

log = structlog.get_logger("daemon")

LIVE_SECONDS = 0.4
IDLE_SECONDS = 5.0
HOUR = 3600.0


@dataclass
class Engine:
    """What the daemon and `ckptd export` share: journal, intake and runner on one state directory, locked."""

    settings: Settings
    paths: Paths
    journal: Journal
    intake: Intake
    runner: Runner
    attention: threading.Event


def work_now(settings: Settings, job: JobRow) -> Work | None:
    """A job's configuration as it is now, the run's own file included; None where that can't be known any more."""
    run = run_of(Path(job.checkpoint.path))
    return effective(settings, run).settings.work if run.is_dir() else None


@contextmanager
def engine(
    settings: Settings, state: Path, work_of: Callable[[Settings, JobRow], Work | None] = work_now, executor: Executor | None = None
) -> Iterator[Engine]:  # fmt: skip
    """Lock, open and recover. `executor` runs the attempts: as processes of this box, unless another one takes its place.

    Raises UsageError where a folder can't be written or another process holds the lock.
    """
    executor = executor or LocalExecutor()
    paths = prepare(state, settings.output.directory)
    with locked(paths.lock):
        executor.prepare()
        journal = open_journal(
            paths, target_of=lambda seen: target_of(settings, paths, seen), reserve=int(settings.limits.disk_reserve)
        )  # fmt: skip
        try:
            attention = threading.Event()
            runner = Runner(settings, journal, paths, executor, changed=attention.set, work_of=work_of)
            runner.recover()
            yield Engine(settings, paths, journal, Intake(settings, journal, paths), runner, attention)
        finally:
            journal.close()


class Daemon:
    """The service: an engine with a watcher, a notifier and ticks. `reload` gives the configuration as it is now."""

    def __init__(self, parts: Engine, reload: Callable[[], Settings]) -> None:
        self._parts, self._reload = parts, reload
        self._started = now()
        self._loaded = ConfigLoad(self._started)
        self._stop = threading.Event()
        self._complaints = Complaints(log, "the heartbeat")
        self._reload_wanted = False
        self._runner = threading.Thread(target=parts.runner.run, name="runner", daemon=True)
        self._notifier = Notifier(parts.settings.notify, parts.journal)
        self._maintenance = JournalMaintenance(
            parts.journal.database, parts.paths, parts.settings.schedule.backups, int(parts.settings.limits.disk_reserve)
        )  # fmt: skip
        self._watcher = self._make_watcher()
        self._ticks = self._make_ticks()
        self._journal_written = time.monotonic()
        self._live = LiveWriter(parts.paths.live)
        self._announce_rebuilding()

    def _announce_rebuilding(self) -> None:
        """Notify once that the journal was damaged and rebuilt; it counts as a failure for `notify.on`."""
        rebuilt, notify = self._maintenance.state().rebuilt, self._parts.settings.notify
        if rebuilt and notify.urls and "failed" in notify.on:
            body = (
                f"It was set aside as {rebuilt.get('set_aside')} and rebuilt from {rebuilt.get('from')}. Why: {rebuilt.get('why')}. "
                "Look at that disk."
            )
            self._parts.journal.outbox.announce(f"rebuilt {rebuilt.get('token')}", "failed", "ckptd: the journal was damaged", body)

    def _make_watcher(self) -> Watcher:
        return Watcher(self._parts.settings, self._parts.intake, taken=self._parts.runner.wake)

    def _make_ticks(self) -> Ticks:
        settings, metrics_complaints = self._parts.settings, Complaints(log, "the metrics")
        metrics_tick = {"metrics": (15.0, lambda: metrics_complaints.during(self._write_metrics))}
        return Ticks({
            **(metrics_tick if settings.metrics.textfile else {}),
            "heartbeat": (max(5.0, settings.watch.rescan_seconds), self._write_journal),
            "integrity": (settings.schedule.integrity_hours * HOUR, self._maintenance.check_integrity),
            "backup": (settings.schedule.backup_hours * HOUR, self._maintenance.back_up),
        })  # fmt: skip

    def run(self) -> None:
        """Serve until a signal asks to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_reload)
        self._notifier.start()
        self._runner.start()
        self._watcher.start()
        self._ticks.start()
        self._ticks.soon("integrity")  # a large journal is not checked entirely when it is opened
        self._say_watching("ckptd is watching")
        self._write_live()
        systemd.notify("READY=1\nSTATUS=watching")
        try:
            self._serve()
        finally:
            self._shut_down()

    def _say_watching(self, event: str) -> None:
        roots = {str(root): self._watcher.backend_of(root) for root in self._parts.settings.watch.roots}
        log.info(event, version=__version__, roots=roots, output=str(self._parts.paths.output),
                 state=str(self._parts.paths.state), variants=list(self._parts.settings.variants))  # fmt: skip

    def _on_stop(self, _number: int, _frame: object) -> None:
        if self._stop.is_set():
            self._parts.runner.hurry()
        self._stop.set()
        self._parts.attention.set()

    def _on_reload(self, _number: int, _frame: object) -> None:
        self._reload_wanted = True
        self._parts.attention.set()

    def _serve(self) -> None:
        watchdog = systemd.watchdog_seconds()
        pause = min(IDLE_SECONDS, watchdog / 3) if watchdog else IDLE_SECONDS
        while not self._stop.is_set():
            news = self._parts.attention.wait(pause)
            self._parts.attention.clear()
            if self._stop.is_set():
                return
            if self._parts.paths.suspect.exists():
                raise Permanent(
                    FaultCode.JOURNAL_DAMAGED, "go on", "the journal has turned out to be damaged",
                    "start again: it is set aside and rebuilt then", path=self._parts.paths.journal,
                )  # fmt: skip
            if self._reload_wanted:
                self._take_over_configuration()
            if self._ticks.look_at_clock():
                self._notifier.clock_jumped()
            self._write_live()
            if news:
                self._notifier.wake()
            if watchdog and self.healthy():
                systemd.notify("WATCHDOG=1")
            if news:
                self._stop.wait(LIVE_SECONDS)

    def _take_over_configuration(self) -> None:
        """Go on by the configuration as it is now, if all of it is valid and can be changed while we run."""
        self._reload_wanted = False
        systemd.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        found, problem = reread(self._reload)
        if found is not None:
            problem = changed_for_good(self._parts.settings, found)
        if found is None or problem:
            log.error(f"The configuration stays as it was: {problem}", code=FaultCode.RELOAD_REFUSED)
        else:
            self._watcher.stop()
            self._ticks.stop()
            parts = self._parts
            parts.settings, parts.intake = found, Intake(found, parts.journal, parts.paths)
            logs.set_up(found.log, parts.paths.log)
            parts.runner.adopt(found)
            self._notifier.adopt(found.notify)
            self._maintenance.keep = found.schedule.backups
            self._watcher, self._ticks = self._make_watcher(), self._make_ticks()
            self._watcher.start()
            self._ticks.start()
            self._say_watching("the configuration was taken over")
        self._loaded = ConfigLoad(now(), problem)
        systemd.notify("READY=1")

    def _shut_down(self) -> None:
        systemd.notify("STOPPING=1")
        log.info("stopping", children=len(self._parts.runner.children.running))
        self._ticks.stop()
        self._watcher.stop()
        self._parts.runner.stop()
        self._runner.join()
        self._notifier.stop()
        self._write_live()
        log.info("stopped")

    def healthy(self) -> bool:
        """Every thread lives, the roots were scanned and the journal took a write not long ago."""
        age = time.monotonic() - self._watcher.last_scan
        limit = 3 * self._parts.settings.watch.rescan_seconds + 60
        threads = (self._runner.is_alive(), self._watcher.thread.is_alive(), self._notifier.thread.is_alive())
        return all(threads) and age < limit and time.monotonic() - self._journal_written < limit

    def _write_journal(self) -> None:
        if self._complaints.during(self._parts.journal.controls.heartbeat):
            self._journal_written = time.monotonic()

    def _write_live(self) -> None:
        self._live.write(live_file(
            self._parts.settings, self._watcher, self._parts.runner, started=self._started, healthy=self.healthy(), loaded=self._loaded,
            care=self._maintenance.state(),
        ), self._watcher)  # fmt: skip

    def _write_metrics(self) -> None:
        file = self._parts.settings.metrics.textfile
        if file is None:
            return
        gauges = {
            "ckptd_children": float(len(self._parts.runner.children.running)),
            "ckptd_incomplete_checkpoints": float(len(self._watcher.tracker.incomplete)),
            "ckptd_outbox_pending": float(self._parts.journal.outbox.pending()),
            "ckptd_last_scan_age_seconds": time.monotonic() - self._watcher.last_scan,
            "ckptd_resident_bytes": float(psutil.Process().memory_info().rss),
        }
        metrics.write(file, metrics.render(self._parts.journal.jobs.counts(), gauges))


def serve(settings: Settings, reload: Callable[[], Settings], executor: Executor | None = None) -> None:
    """Run the daemon in this process until it is told to stop. `reload`: reads the configuration again; `executor`: as for `engine`."""
    give_back_early()
    with engine(settings, settings.state_directory, executor=executor) as parts:
        Daemon(parts, reload).run()
