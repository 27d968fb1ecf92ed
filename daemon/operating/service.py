"""The composition root: builds the parts, owns signals, start-up and shutdown order.

Start: lock, journal, recovery, runner, notifier, watcher, ticks, READY. Stop: no new hints, no new work, children
end at their next safe point and are recorded as interrupted, the journal closes, the lock goes last. A second
signal ends the children at once. SIGHUP reads the configuration again and takes it over if all of it is valid.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from daemon.config.layers import Source
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.plan import stage_names
from daemon.contract.version import __version__
from daemon.journal.rows import now
from daemon.operating import last_end, systemd
from daemon.operating.announcements import Announcements
from daemon.operating.daily import Daily
from daemon.operating.deliveries import Delivering
from daemon.operating.diagnosis import packages
from daemon.operating.disks.watch import DiskWatch
from daemon.operating.engine import Engine, engine
from daemon.operating.integrity.maintenance import JournalMaintenance
from daemon.operating.log import logs
from daemon.operating.monitoring.live import Condition, ConfigLoad, LiveWriter, live_file, read_live, starved_sentences
from daemon.operating.monitoring.metrics.table import TICK_SECONDS
from daemon.operating.outward import PageFactory, Serving
from daemon.operating.reload import changed_for_good, changes, reread
from daemon.operating.ticks import Ticks
from daemon.operating.well_being import WellBeing, why_stuck
from daemon.publishing.keeping import begin
from daemon.publishing.telling.notifier import Notifier
from daemon.running.attempts.executor import Executor
from daemon.system.filesystems.disks import Place, Refusals
from daemon.system.logger import Logger
from daemon.system.processes.allocator import give_back_early
from daemon.system.processes.rounds import Complaints
from daemon.system.processes.signals import on_signals
from daemon.system.processes.threads import Supervised, reason_of
from daemon.toolchains.overview import lacking_for
from daemon.toolchains.registry import Toolchains
from daemon.watching.groups import Watchers
from daemon.watching.taking.intake import Intake
from daemon.watching.watcher import Watcher

if TYPE_CHECKING:
    from daemon.operating.monitoring.metrics.exposition import Exposition

log = Logger("daemon")

LIVE_SECONDS = 0.4
IDLE_SECONDS = 5.0
SHORT_SECONDS = 1.0
"""Between two looks while a disk has no room: what waits for some goes on within seconds."""
UNFORESEEN_SECONDS = 300.0
"""How long every round of a thread may meet an error that nobody foresaw, before the daemon ends and is started afresh."""
UNFORESEEN_ROUNDS = 3
"""And how many of them at least: some rounds are an hour apart."""
ROOM_CODES = frozenset({FaultCode.DISK_FULL, FaultCode.DISK_NOW, FaultCode.JOURNAL_UNAVAILABLE})
"""Errors that a full disk accounts for."""
INTEGRITY_SECONDS = 24 * 3600.0
"""Between checks of all of the journal: what it reads is checked anyway, and one that is damaged is rebuilt at the next start."""
DIGEST_SECONDS = 30.0
"""Between looks whether it is time for the daily digest."""
BACKUP_SECONDS = 6 * 3600.0
"""Between backups of the journal. What is newer than the last is rebuilt from the disk."""


class _News(NamedTuple):
    """A configuration that is taken over, its files, and what has changed in it."""

    settings: Settings
    source: Source | None
    changed: tuple[str, ...]


class Daemon:
    """The service: an engine with a watcher, a notifier and ticks. `reload` gives the configuration as it is now."""

    def __init__(
        self, parts: Engine, reload: Callable[[], Settings], source: Callable[[], Source] | None = None, page: PageFactory | None = None
    ) -> None:
        """`source`: the files of what `reload` gave last, or of the settings at the start. `page`: makes the page."""
        self._parts, self._reload, self._source = parts, reload, source
        self._started = now()
        self._taken = source() if source else None
        self._loaded = self._load(self._started)
        self._has_stopped = False
        self._stopping: str | None = None
        """Since when it shuts down."""
        self._stop = threading.Event()
        self._end: Permanent | None = None
        """Why the daemon ends by itself."""
        self._complaints = Complaints(log, "the heartbeat")
        self._reload_wanted = self._news = False
        self._half_taken: _News | None = None
        """A configuration whose taking over failed on the way."""
        self._runner = Supervised("runner", parts.runner.run, log, stop=parts.runner.stop)
        self._notifier = Notifier(parts.settings.notify, parts.journal)
        self._announcements = Announcements(parts.journal, self._notifier, lambda: parts.settings)
        self._refusals = Refusals(parts.attention.set)
        self._delivering = Delivering(parts, self._refusals.note)
        self._disks = DiskWatch(parts.settings, parts.paths, self._refusals, self._announcements.tell_disk, self._go_on)
        self._last_end = last_end.read(parts.paths)
        self._maintenance = JournalMaintenance(
            parts.journal.database, parts.paths, reserve=int(parts.settings.limits.disk_reserve)
        )  # fmt: skip
        parts.intake = Intake(parts.settings, parts.journal, parts.paths, tell=self._announcements.tell_away)
        self._watcher = self._make_watcher()
        self._exposition: Exposition | None = None
        self._ticks = self._make_ticks()
        self._journal_written = time.monotonic()
        self._parts.runner.waits.refused = self._refusals.note
        self._parts.runner.away.tell = self._announcements.tell_away
        self._maintenance.refused = self._refusals.note
        for thread in (self._runner, self._notifier.thread):
            thread.lost = parts.attention.set
        self._steps = {name: (Complaints(log, f"the daemon's main loop ({name})"), step) for name, step in self._what_is_done().items()}
        for complaints in self._guarded():
            complaints.noted = self._refusals.note
        self._live = LiveWriter(parts.paths.live, self._refusals.note)
        self._page = page(self._serving()) if page else None
        self._announcements.tell_rebuilding(self._maintenance.state())
        self._announcements.tell_last_end(self._last_end)
        self._announcements.tell_killed(read_live(parts.paths.live))
        self._well_being = WellBeing(self._announcements, lambda: why_stuck(parts.settings.notify, parts.journal, parts.runner))
        self._notifier.heartbeats.well = self._well_being.is_well
        self._digest_complaints = Complaints(log, "the daily digest")
        self._daily = Daily(parts.journal, self._notifier.wake)
        self._say_last_end()

    def _serving(self) -> Serving:
        parts = self._parts
        return Serving(
            parts.settings, parts.paths.state, parts.journal, self.exposition, parts.runner.wake,
            lambda: self._taken.file if self._taken else None,
        )  # fmt: skip

    def _say_last_end(self) -> None:
        if self._last_end is not None:
            log.warning(
                f"The last ckptd on this state directory ended by itself at {self._last_end.at}. {self._last_end.why}",
                event_id=Event.DAEMON_FAILED_BEFORE,
                code=FaultCode.THREAD_LOST,
            )

    def _go_on(self) -> None:
        """There is room again: what waited for it does so no longer."""
        self._parts.runner.room_again()
        self._watcher.look_again()
        self._delivering.wake()
        self._ticks.soon("heartbeat")

    def _make_watcher(self) -> Watchers:
        def made(watcher: Watcher) -> None:
            watcher.complaints.noted = watcher.tracker.refused = self._refusals.note
            watcher.thread.lost = self._parts.attention.set

        return Watchers(self._parts.settings, self._parts.intake, taken=self._parts.runner.wake, made=made)

    def _make_ticks(self) -> Ticks:
        settings, complaints = self._parts.settings, Complaints(log, "the metrics")
        metrics_tick = {"metrics": (TICK_SECONDS, lambda: complaints.during(self._take_metrics))}
        if self._is_measured():
            self._expose()
        return Ticks({
            **(metrics_tick if self._is_measured() else {}),
            **({"digest": (DIGEST_SECONDS, self._tell_digest)} if settings.notify.wants("digest") else {}),
            "heartbeat": (max(5.0, settings.watch.rescan_seconds), self._write_journal),
            "integrity": (INTEGRITY_SECONDS, self._maintenance.check_integrity),
            "backup": (BACKUP_SECONDS, self._maintenance.back_up),
        })  # fmt: skip

    def _start_ticks(self) -> None:
        self._ticks.start()
        if self._is_measured():
            self._ticks.soon("metrics")  # what an earlier daemon left in the file is no longer true

    def run(self, early: threading.Event) -> None:
        """Serve until a signal asks to stop. `early`: whether the configuration is to be read again since before."""
        on_signals((signal.SIGTERM, signal.SIGINT), self._on_stop)
        on_signals((signal.SIGHUP,), self._on_reload)
        if early.is_set():
            self._on_reload()
        self._notifier.start()
        Complaints(log, "the deliveries").during(self._delivering.adopt)
        self._runner.start()
        self._watcher.start()
        self._start_ticks()
        self._adopt_page()
        self._complaints.during(lambda: begin(self._parts.paths))
        self._ticks.soon("integrity")  # a large journal is not checked entirely when it is opened
        try:
            self._say_watching(Event.DAEMON_STARTED, "ckptd is watching")
            Complaints(log, "the start").during(self._say_paused)
            self._steps["the live file"][0].during(self._write_live)
            systemd.notify("READY=1\nSTATUS=watching")
            self._serve()
        except BaseException as error:
            end = error if isinstance(error, Permanent) else _thread_lost(f"the main thread had an error: {reason_of(error)}")
            last_end.keep(self._parts.paths, last_end.LastEnd(now(), end.fault.sentence()))
            log.critical(end.fault.sentence(), event_id=Event.DAEMON_FAILED, code=end.fault.code, exc_info=None if end is error else error)
            if end is error:
                raise
            raise end from error
        else:
            last_end.forget(self._parts.paths)
        finally:
            self._shut_down()

    def _say_watching(self, event_id: Event, sentence: str) -> None:
        roots = {str(root): self._watcher.backend_of(root) for root in self._parts.settings.watch.roots}
        log.info(sentence, event_id=event_id, version=__version__, roots=roots, output=str(self._parts.paths.output),
                 state=str(self._parts.paths.state), variants=list(self._parts.settings.variants),
                 retention=self._parts.settings.retention.said)  # fmt: skip
        settings = self._parts.settings
        for said in settings.older:
            log.warning(said, event_id=Event.CONFIG_OLDER_KEY)
        by_itself = settings.toolchains.auto_install
        lacking = () if by_itself else lacking_for(settings.variants, Toolchains(settings.state_directory))
        for sentence in (*packages.unsuitable(), *lacking):
            log.warning(sentence, event_id=Event.DAEMON_LACKS)

    def _say_paused(self) -> None:
        since = self._parts.journal.controls.paused_since()
        if since is not None:
            log.warning(
                "all exports are paused, and none begins until `ckptd queue resume`", event_id=Event.DAEMON_PAUSED, since=str(since),
                waiting=len(self._parts.journal.jobs.open_ids()),
            )  # fmt: skip

    def _on_stop(self) -> None:
        if self._stop.is_set():
            self._parts.runner.hurry()
        self._stop.set()
        self._parts.attention.set()

    def _on_reload(self) -> None:
        self._reload_wanted = True
        self._parts.attention.set()

    def _serve(self) -> None:
        watchdog = systemd.watchdog_seconds()
        pause = min(IDLE_SECONDS, watchdog / 3) if watchdog else IDLE_SECONDS
        while not self._stop.is_set():
            self._news = self._parts.attention.wait(min(pause, SHORT_SECONDS) if self._disks.episodes else pause)
            self._parts.attention.clear()
            for complaints, step in self._steps.values():
                if self._stop.is_set():
                    return
                complaints.during(step)
            self._end = self._end or self._lost()
            if self._end is not None:
                raise self._end
            if self._news:
                self._stop.wait(LIVE_SECONDS)

    def _what_is_done(self) -> dict[str, Callable[[], object]]:
        """Step of the main loop → what it does. One that fails keeps none of the others from its turn."""
        return {
            "the journal's state": self._look_at_journal,
            "the configuration": self._reload_if_wanted,
            "the clock": self._look_at_clock,
            "the disks": self._look_at_disks,
            "the mounts": lambda: self._watcher.look(),
            "the ticks": self._look_at_threads,
            "the page": self._look_at_page,
            "the live file": self._write_live,
            "the condition": lambda: self._well_being.look(self.condition()),
            "the notifier": self._hint_notifier,
            "the watchdog": self._feed_watchdog,
        }

    def _look_at_journal(self) -> None:
        if self._parts.paths.suspect.exists():
            self._end = Permanent(
                FaultCode.JOURNAL_DAMAGED, "go on", "the journal was found to be damaged",
                "start ckptd again: it sets the journal aside and rebuilds it", path=self._parts.paths.journal,
            )  # fmt: skip

    def _reload_if_wanted(self) -> None:
        if self._reload_wanted:
            self._take_over_configuration()
        elif self._half_taken is not None:
            self._go_on_by(self._half_taken)
            systemd.notify("READY=1\nSTATUS=watching")

    def _look_at_clock(self) -> None:
        if self._ticks.look_at_clock():
            self._notifier.clock_jumped()
            self._delivering.clock_jumped()

    def _look_at_disks(self) -> None:
        waiting = dict(self._parts.runner.waits.of).values()
        self._disks.look([Place("", wait.fault.path, wait.room) for wait in waiting if wait.room and wait.fault.path])

    def _look_at_threads(self) -> None:
        """Replace threads that are gone without a word; those that died of an error begin again by themselves."""
        for thread in self._threads():
            thread.revive()
        if not self._ticks.is_alive():
            log.error("The thread of the ticks died, or one of them hangs; they begin again.", event_id=Event.THREAD_DIED)
            self._ticks.stop()
            self._ticks = self._make_ticks()
            self._start_ticks()

    def _look_at_page(self) -> None:
        if self._page is not None:
            self._page.look()

    def _adopt_page(self) -> None:
        if self._page is not None:
            Complaints(log, "the page").during(functools.partial(self._page.adopt, self._parts.settings))

    def _stop_page(self) -> None:
        if self._page is not None:
            self._page.stop()

    def _hint_notifier(self) -> None:
        if self._news:
            self._notifier.wake()
            self._delivering.wake()

    def _feed_watchdog(self) -> None:
        if self.alive():
            systemd.notify("WATCHDOG=1")

    def _threads(self) -> tuple[Supervised, ...]:
        return (self._runner, *(watcher.thread for watcher in self._watcher.each), self._notifier.thread, *self._delivering.threads)

    def _guarded(self) -> tuple[Complaints, ...]:
        return (
            self._parts.runner.complaints, *(watcher.complaints for watcher in self._watcher.each), self._notifier.complaints,
            *self._delivering.complaints, self._complaints,
            *(complaints for complaints, _ in self._steps.values()),
        )  # fmt: skip

    def _lost(self) -> Permanent | None:
        """Why the daemon can't go on: a thread that dies again and again, or that meets the same unforeseen error in every round."""
        for thread in self._threads():
            if thread.given_up is not None:
                return _thread_lost(f"the thread {thread.name} died {len(thread.deaths)} times within a minute: {thread.given_up.why}")
        for complaints in self._guarded():
            fault, since = complaints.trouble, complaints.since
            lasts = complaints.failed >= UNFORESEEN_ROUNDS and time.monotonic() - since > UNFORESEEN_SECONDS
            if fault is not None and fault.code == FaultCode.UNEXPECTED and lasts:
                return _thread_lost(f"for {UNFORESEEN_SECONDS:.0f} s every round of {complaints.who} had an error: {fault.cause}")
        return None

    def _take_over_configuration(self) -> None:
        """Go on by the configuration as it is now, if all of it is valid and can be changed while we run."""
        self._reload_wanted = False
        systemd.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        settings, problem = reread(self._reload)
        if settings is not None:
            problem = changed_for_good(self._parts.settings, settings)
        if settings is None or problem:
            log.error(f"The configuration stays as it was: {problem}", event_id=Event.CONFIG_REFUSED, code=FaultCode.RELOAD_REFUSED)
            self._loaded = self._load(now(), problem)
        else:
            source = self._source() if self._source else None
            self._go_on_by(_News(settings, source, changes(self._parts.settings, settings)))
        said = problem and " ".join(f"the configuration stays as it was: {problem}".split())
        systemd.notify(f"READY=1\nSTATUS={said or 'watching'}")

    def _load(self, at: str, problem: str | None = None, changed: tuple[str, ...] | None = None) -> ConfigLoad:
        file, digest = (self._taken.file, self._taken.digest) if self._taken else (None, None)
        said, has_changed = self._parts.settings.retention.said, None if changed is None else bool(changed)
        return ConfigLoad(at, problem, file, digest, has_changed, changed or (), said)

    def _go_on_by(self, news: _News) -> None:
        """Take another configuration over. Where that fails the threads of before are stopped, and the next round does all of it again."""
        self._half_taken = news
        settings, changed = news.settings, news.changed
        self._watcher.stop()
        self._ticks.stop()
        parts = self._parts
        parts.settings, parts.intake = settings, Intake(settings, parts.journal, parts.paths, tell=self._announcements.tell_away)
        self._disks.settings = settings
        logs.set_up(settings.log, parts.paths.log)
        parts.runner.adopt(settings)
        self._notifier.adopt(settings.notify)
        self._delivering.adopt()
        self._watcher, self._ticks = self._make_watcher(), self._make_ticks()
        self._watcher.start()
        self._start_ticks()
        self._adopt_page()
        self._taken, self._half_taken = news.source, None
        self._loaded = self._load(now(), changed=changed)
        said = f": {'; '.join(changed)}" if changed else "; nothing has changed in it"
        self._say_watching(Event.CONFIG_RELOADED, f"the configuration was taken over{said}")

    def _shut_down(self) -> None:
        systemd.notify("STOPPING=1")
        log.info("stopping", event_id=Event.DAEMON_STOPPING, children=len(self._parts.runner.children.running))
        self._stopping = now()
        for step in (
            self._write_live,  # stages have a while to end in order
            self._ticks.stop,
            self._watcher.stop,
            self._parts.runner.stop,
            self._runner.join,
            self._stop_page,
            self._delivering.stop,
            self._notifier.stop,
            self._write_last,
        ):
            Complaints(log, "the end").during(step)
        log.info("stopped", event_id=Event.DAEMON_STOPPED)

    def alive(self) -> bool:
        """Every thread lives and makes its rounds, whatever the disks do: what the service manager's watchdog is told."""
        return all(thread.is_alive() for thread in self._threads()) and not self._standing_still(self._late())

    def _late(self) -> dict[str, tuple[float, Complaints]]:
        """What has to be done now and then → seconds since it was done last, and who tries."""
        moment = time.monotonic()
        scans = {
            f"no scan of {', '.join(map(str, watcher.roots))} has ended": (moment - watcher.last_scan, watcher.complaints)
            for watcher in self._watcher.answering
        }
        return {**scans, "there was no write to the journal": (moment - self._journal_written, self._complaints)}

    def _standing_still(self, late: dict[str, tuple[float, Complaints]]) -> list[str]:
        """What is overdue though nothing foreseen keeps it: a disk that is full keeps it for as long as it likes."""
        limit = 3 * self._parts.settings.watch.rescan_seconds + 60
        return [
            f"For {age:.0f} s {what}." for what, (age, who) in late.items()
            if age >= limit and (who.trouble is None or who.trouble.code == FaultCode.UNEXPECTED)
        ]  # fmt: skip

    def condition(self) -> Condition:
        """How the daemon is, for people and programs."""
        threads, disks = self._threads(), self._disks.shortages()
        unwell = [f"The thread {thread.name} does not run." for thread in threads if not thread.is_alive()]
        unwell += self._standing_still(self._late())
        unwell += self._parts.runner.children.unheard()
        unwell += self._disks.unwritable
        for complaints in self._guarded():
            fault, since = complaints.trouble, complaints.since
            if fault is not None and not (disks and fault.code in ROOM_CODES):
                unwell.append(f"{fault.sentence()} (for {time.monotonic() - since:.0f} s)")
        deaths = [thread.deaths[-1] for thread in threads if thread.deaths]
        page = self._page.state() if self._page else None
        deaths += [death] if self._page and (death := self._page.death()) else []
        return Condition(
            "full" if disks else "unwell" if unwell else "healthy", tuple(unwell), starved=tuple(starved_sentences(self._parts.runner)),
            deaths=tuple(deaths), last_end=self._last_end, places=self._disks.places, disks=disks, page=page,
        )  # fmt: skip

    def _tell_digest(self) -> None:
        self._digest_complaints.during(lambda: self._daily.tick(self._parts.settings.notify.digest_at, self._parts.settings.page.url))

    def _write_journal(self) -> None:
        if self._complaints.during(self._parts.journal.controls.heartbeat):
            self._journal_written = time.monotonic()

    def _write_live(self) -> None:
        self._live.write(live_file(
            self._parts.settings, self._watcher, self._parts.runner, started=self._started, condition=self.condition(), loaded=self._loaded,
            care=self._maintenance.state(), in_order=self._has_stopped, stopping=self._stopping, carried=self._delivering.progress(),
        ), self._watcher)  # fmt: skip

    def _write_last(self) -> None:
        self._has_stopped = True
        self._write_live()

    def _is_measured(self) -> bool:
        return self._parts.settings.metrics.textfile is not None or self._parts.settings.page.address is not None

    def _expose(self) -> Exposition:
        """Return what holds the metrics; it is made, and its library imported, when they are first wanted."""
        from daemon.operating.monitoring.metrics.exposition import Exposition

        if self._exposition is None:
            settings = self._parts.settings
            self._exposition = Exposition(self._parts.journal, stage_names(settings.work, ""), settings.variants)
        return self._exposition

    def _take_metrics(self) -> None:
        from daemon.operating.monitoring.metrics.gauges import take_gauges

        parts, exposition = self._parts, self._expose()
        exposition.take(take_gauges(
            parts.settings, parts.paths, parts.journal, parts.runner, self._watcher, started=self._started, loaded=self._loaded,
            condition=self.condition(), low_disks=len(self._disks.episodes),
        ))  # fmt: skip
        if parts.settings.metrics.textfile is not None:
            exposition.write(parts.settings.metrics.textfile)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """The figures for a scraper as they were taken last, and their content type. `accept`: what it says it understands. For any thread;
        raises Retryable where there are none of the last minute."""
        return self._expose().answer(accept)


def _thread_lost(cause: str) -> Permanent:
    return Permanent(
        FaultCode.THREAD_LOST, "go on", cause, "look for its traceback in the log, and report it; the service manager restarts ckptd",
    )  # fmt: skip


def serve(
    settings: Settings, reload: Callable[[], Settings], executor: Executor | None = None, source: Callable[[], Source] | None = None,
    page: PageFactory | None = None,
) -> None:  # fmt: skip
    """Run the daemon in this process until it is told to stop. `executor`: as for `engine`; the others: as for `Daemon`."""
    give_back_early()
    early = threading.Event()
    on_signals((signal.SIGHUP,), early.set)  # `reload` may ask as soon as the lock is held; without a handler the signal ends the process
    with engine(settings, settings.state_directory, executor=executor, patient=True) as parts:
        Daemon(parts, reload, source, page).run(early)
