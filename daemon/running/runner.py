"""The life of the runner and one round of it: take in what ended, start what can be started. One loop does all the work.

Which pending job starts is in `queue.py`, how jobs end in `endings.py`, how a ready stage is started in `starter.py`.

A restart has no path of its own: attempts of a dead daemon are settled as interrupted, taken as they are where their result was
complete, or taken over where they still run, and the work is picked up by the same `tick`. Runs in one permanent thread, as executors
ask for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from daemon.checkpoints.pinning.pins import pins_of
from daemon.config.places.paths import Paths
from daemon.config.settings import Settings
from daemon.contract.disk.answers import ask
from daemon.contract.faults.errors import CkptdError, Fault, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import spec_of
from daemon.journal.file.sqlite_errors import OF_ALL
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptRow, JobRow, StageRow
from daemon.journal.states import ENDED_STAGE
from daemon.running.attempts.children import Children
from daemon.running.attempts.executor import Attempt, Executor
from daemon.running.attempts.job_file import bounds_of
from daemon.running.endings import Endings
from daemon.running.parts import Parts
from daemon.running.queue import Queue
from daemon.running.recovery import end, left_open, tidy_up
from daemon.running.rules.admission import WAIT_SECONDS
from daemon.running.rules.ready import verifying
from daemon.running.rules.resume_keys import keys_of, sources_of
from daemon.running.starter import sized_by
from daemon.running.waits import FOR_ROOM
from daemon.system.logger import Logger
from daemon.system.processes.rounds import Complaints

log = Logger("runner")

IDLE_SECONDS = 3.0
"""Pause between looks into the journal while nothing runs: `ckptd queue retry` and others put work there from outside."""
NEWS_SECONDS = 0.25
"""Longest wait for news of running attempts."""
JOURNAL_TRIES = 5
"""Failed rounds, at the end, after which outcomes are left for the next start to find."""
STUCK_SECONDS = 15.0
"""Beyond `limits.stop_seconds`, for a child that is stuck in the kernel: it must not hold up the end."""
ANSWER_SECONDS = 2.0
"""For the size of a base whose stage is taken over."""


@dataclass
class Runner:
    """Works through the journal: up to `limits.jobs` jobs, each with up to `limits.stages` children."""

    settings: Settings
    journal: Journal
    paths: Paths
    executor: Executor
    """What runs the attempts."""
    changed: Callable[[], None] = lambda: None
    """Called after whatever people may want to see."""
    work_of: Callable[[Settings, JobRow], Work | None] = lambda settings, job: None
    """The configuration of a job as it is now; None: the one that it was entered with."""
    at_once: bool = False
    """A person waits: what is missing at the start fails at once, and is not waited for."""
    full_before: bool = False
    """A disk was full when the last ckptd ended: an attempt that it left open could not be recorded, and is no crash of its stage."""

    def __post_init__(self) -> None:
        self._wake = threading.Event()
        self._stopping = self._hurry = self._room = self._recovered = False
        self._adopted: Settings | None = None
        self._nothing_since: tuple[int, ...] | None = None
        """The journal's state when there was nothing left to do; None while there may be something."""
        self.complaints = Complaints(log, "the runner")
        self.children = Children(self.journal, self.paths, self.executor)
        self.parts = Parts(self.settings, self.journal, self.paths, self.children, self._wake.set, lambda: self.changed())
        self.waits, self.away, self.installing = self.parts.waits, self.parts.away, self.parts.installing
        self.endings = Endings(self.parts)
        self.queue = Queue(self.parts, self.endings.refuse_early)
        self._configure()

    def _configure(self) -> None:
        self.parts.configure(self.settings, self.work_of, at_once=self.at_once)
        self.queue.search_again()

    # Life

    def recover(self) -> None:
        """Settle or take over what a dead daemon left open; must be called before the first tick, in the thread of the ticks or before that
        thread begins. Where the journal can't be written now, `run` does the rest of it first."""
        mine = {running.row.id for running in self.children.running.values()}
        for row, left in left_open(self.journal, self.executor, bounds_of(self.settings.limits), mine):
            if left is not None and not isinstance(left, StageResult):
                if self._take_over(row, left):
                    continue
                left = end(left)
            result = left or StageResult(outcome=Outcome.INTERRUPTED)
            stage = self.journal.stages.of(row.job)[row.stage]
            self.parts.outcomes.settle(row, stage, result, crashed=left is None and not self.full_before)
        at_work = {Path(running.context.temporary) for running in self.children.running.values()}
        for path in tidy_up(self.journal, self.paths, pins_of(self.settings.pin, self.paths), at_work):
            log.info("removed what no job needs", event_id=Event.STATE_CLEANED, path=path)
        self._recovered = True

    def _take_over(self, row: AttemptRow, attempt: Attempt) -> bool:
        """Go on with an attempt that still runs; False where nobody needs it any more, or this version can't."""
        job = self.journal.jobs.get(row.job)
        if job is None or job.state != "running":
            return False
        try:
            folder = sized_by(job, spec_of(row.id.stage))
            size = ask(f"size {folder}", lambda: self.parts.bases.size(folder), ANSWER_SECONDS)
        except (OSError, KeyError):
            return False
        return self.children.take_over(row, job, attempt, size)

    def run(self) -> None:
        """Work until `stop`; then end the children and record them as interrupted."""
        while not self._stopping:
            if not self.complaints.during(self._round):
                self._wake.wait(1)
        self.installing.stop()
        self._end_children()
        self.parts.resumption.close()

    def _round(self) -> None:
        if not self._recovered:
            self.recover()
        self.tick_if_needed()
        self._sleep()

    def stop(self) -> None:
        """Let `run` return; may be called from any thread."""
        self._stopping = True
        self._wake.set()

    def hurry(self) -> None:
        """End the children at once instead of at their next safe point; may be called from any thread."""
        self._hurry = True

    def wake(self) -> None:
        """There may be new work; may be called from any thread."""
        self._wake.set()

    def adopt(self, settings: Settings) -> None:
        """Go on by another configuration from the next round on; may be called from any thread."""
        self._adopted = settings
        self._wake.set()

    def room_again(self) -> None:
        """There is room on the disks again: what waited for some goes on in the next round; may be called from any thread."""
        self._room = True
        self._wake.set()

    def _take_room(self) -> None:
        """Let what waits for room, or for its next try after a full disk, go on now."""
        if self._room:
            self.journal.stages.hasten(FOR_ROOM)
            self.waits.room_again()
            self._room = False

    def _adopt_settings(self) -> None:
        """Go on by the configuration that `adopt` was given."""
        if self._adopted is not None:
            self.settings, self._adopted = self._adopted, None
            self.parts.resumption.close()
            self._configure()
            self.waits.of.clear()

    def _sleep(self) -> None:
        if self.children.running:
            self.children.wait(NEWS_SECONDS)
        else:
            self.executor.tidy()
            self._wake.wait(self.waits.pause(1.0) if len(self.waits) else IDLE_SECONDS)
            self._wake.clear()

    def _end_children(self) -> None:
        """Stop the children and record them; what the journal can't take now, the next start finds and records."""
        complaints, failures = Complaints(log, "the runner"), 0
        patience = time.monotonic() + self.settings.limits.stop_seconds + STUCK_SECONDS
        if not self.at_once:
            complaints.during(lambda: self.children.let_go({job.id for job in self.journal.jobs.running()}))
        self.children.stop()
        while self.children.running and failures < JOURNAL_TRIES and time.monotonic() < patience:
            if self._hurry:
                self.children.stop(hurry=True)
            failures += not complaints.during(self.parts.outcomes.reap)
            time.sleep(0.02)

    def is_of_another_base(self, job: JobRow, stages: Mapping[str, StageRow]) -> bool:
        """Whether what the job has made so far was made of another base than is found for it now, or by other versions.

        For who asks whether it may go on, or stand: a running job keeps to the base that it began with. `stages`: the job's, which may be
        of another journal. Raises Retryable and OSError.
        """
        folder, _ = self.parts.bases.find(job.checkpoint)
        made = next((stage for stage in stages.values() if stage.key), None)
        if folder is None or made is None:
            return folder is not None and job.base is not None and folder != job.base
        now, first = replace(job, base=folder), {made.name: made}
        return keys_of(now, first, self.settings.limits.device, sources_of(now, first), self.children.machine_of)[made.name] != made.key

    # Work

    def tick_if_needed(self) -> None:
        """A round, unless there was nothing left to do after the last one and the journal has not changed since."""
        state = self.journal.database.state()
        if state == self._nothing_since and self._adopted is None:
            return
        self._nothing_since = None
        self.tick()
        if self._is_idle() and state == self.journal.database.state():
            self._nothing_since = state

    def _is_idle(self) -> bool:
        jobs = self.journal.jobs
        return not (
            self.children.running or self.installing.name or self.endings.left or len(self.waits) or jobs.open_ids() or jobs.untidy()
        )

    def tick(self) -> None:
        """One round: keep house, take in what ended, move the jobs that run, and start others where there is room."""
        self._adopt_settings()
        self._take_room()
        self.endings.clear_ended()
        self.installing.look()
        if not self.at_once:
            self.queue.look_at_new()
        self.children.relieve(int(self.settings.limits.memory_reserve))
        if self.settings.schedule.overrun == "stop" and not self.parts.starter.windows.is_open(datetime.now(UTC)):
            self.children.stop_heavy()
        may_start = self.journal.controls.paused_since() is None
        jobs = self.journal.jobs.running()
        self.parts.starter.let_others_go([job.id for job in jobs if may_start and not job.paused])
        self.parts.outcomes.reap()
        for job in self.waits.due(jobs):
            self._try(job, may_start)
        tried: set[str] = set()
        while may_start and not self._stopping and (following := self.queue.next(jobs, tried)):
            tried.add(following.id)
            self._try(following, may_start)
            now = self.journal.jobs.get(following.id)
            if now is None or now.state != "pending":  # else it could not be started, and the next one has its turn
                jobs.append(following)

    def _try(self, job: JobRow, may_start: bool) -> None:
        """Advance a job; one that can't be worked on never keeps the others from it."""
        if self._stopping:
            return
        with structlog.contextvars.bound_contextvars(job=job.id, run=job.checkpoint.run, step=job.checkpoint.step):
            try:
                self._advance(job, may_start)
            except (CkptdError, OSError) as error:
                fault = error.fault if isinstance(error, CkptdError) else from_oserror(error, "go on with the export").fault
                if fault.code in OF_ALL:
                    raise
                self.waits.refused(fault)
                self.waits.add(job.id, fault, WAIT_SECONDS)
            except Exception as error:
                log.exception(
                    "the export met an error that nobody foresaw; it is tried again, the others go on", event_id=Event.EXPORT_UNFORESEEN
                )
                cause = f"{type(error).__name__}: {error}"
                fault = Fault(
                    code=FaultCode.UNEXPECTED,
                    operation="go on with the export",
                    cause=cause,
                    remedy="report it with the traceback in the log",
                )
                self.waits.add(job.id, fault, WAIT_SECONDS)

    def _advance(self, job: JobRow, may_start: bool) -> None:
        """Move a job by as much as needs no child, then start the stages that are ready."""
        started = self.queue.start(job) if job.state == "pending" else job
        if started is None or self.parts.outcomes.is_rewritten(started):
            return
        resumption = self.parts.resumption
        prepared, known = resumption.adopt(started), resumption.known(job.id)
        seen = self.parts.gate.look(prepared, self.journal.stages.of(job.id), known)
        if seen is None:
            return
        if not resumption.prepare(prepared, seen.sources):
            self.waits.add(job.id, verifying(), 0.0)
            return
        moved = True
        while moved:
            stages = self.journal.stages.of(job.id)
            if resumption.take_steps_down(prepared, stages):
                continue
            if all(stage.state in ENDED_STAGE for stage in stages.values()):
                self.endings.finish(prepared, stages)
                return
            moved = self.parts.starter.move(prepared, stages, seen, may_start=may_start and not prepared.paused)
            self.changed()
