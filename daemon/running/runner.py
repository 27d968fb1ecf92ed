"""Picks ready stages, starts their children, and records how they ended: one loop does all the work.

A restart has no path of its own: attempts of a dead daemon are settled as interrupted, taken as they are where their result was
complete, or taken over where they still run, and the work is picked up by the same `tick`. Runs in one permanent thread, as executors
ask for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from daemon.checkpoints.base_models import Bases, config_of
from daemon.checkpoints.pins import pins_of, rewritten
from daemon.config.paths import Paths
from daemon.config.settings import Settings
from daemon.config.sources import as_asked
from daemon.contract.answers import ask
from daemon.contract.away import is_away
from daemon.contract.errors import CkptdError, Fault, from_oserror
from daemon.contract.events import Event
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import effective_variants, spec_of
from daemon.contract.values import Json
from daemon.journal.journal import Journal
from daemon.journal.rewrites import IN_PLACE
from daemon.journal.rows import ENDED_STAGE, AttemptRow, JobRow, StageRow
from daemon.journal.sqlite_errors import OF_ALL
from daemon.publishing.closing import close_job, refuse_early, tidy_job
from daemon.running.children import Children, Running
from daemon.running.executor import Attempt, Executor
from daemon.running.fallbacks import take_steps_down
from daemon.running.gate import FOR_SOURCES, HOUR, Gate
from daemon.running.installing import Installing
from daemon.running.job_file import bounds_of
from daemon.running.outcomes import inputs_are_there, measure, settle
from daemon.running.output_cache import OutputCache
from daemon.running.outside import Place, Seen, key_of
from daemon.running.recovery import end, left_open, tidy_up
from daemon.running.resumption import Resumption
from daemon.running.rules.admission import WAIT_SECONDS
from daemon.running.rules.ready import next_lane, verifying
from daemon.running.rules.resume_keys import keys_of, sources_of
from daemon.running.rules.suitable import unsuited, useless
from daemon.running.starter import Starter, sized_by
from daemon.running.waits import FOR_ROOM, Waits
from daemon.system.episodes import Away
from daemon.system.rounds import Complaints
from daemon.toolchains.registry import Toolchains

log = structlog.get_logger("runner")

IDLE_SECONDS = 3.0
"""Pause between looks into the journal while nothing runs: `ckptd retry` and others put work there from outside."""
NEWS_SECONDS = 0.25
"""Longest wait for news of running attempts."""
JOURNAL_TRIES = 5
"""Failed rounds, at the end, after which outcomes are left for the next start to find."""
STUCK_SECONDS = 15.0
"""Beyond `limits.stop_seconds`, for a child that is stuck in the kernel: it must not hold up the end."""
ANSWER_SECONDS = 2.0
"""For the size of a base whose stage is taken over."""
NEW_LOOKS = 20
"""Jobs that wait for their turn and whose base is looked for, in one round."""
SPARE_JOBS = 3
"""Jobs beyond `limits.jobs` that may be started while others wait for memory, a retry or a window."""


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
        self._left: dict[str, JobRow] = {}
        """Finished jobs whose pin and staging are not cleared away yet."""
        self._stays: dict[str, FaultCode | str] = {}
        """Job of which something can't be cleared away → the code of what was said about that."""
        self.complaints = Complaints(log, "the runner")
        self.children = Children(self.journal, self.paths, self.executor)
        self.waits = Waits(self.children)
        self.away = Away(self.paths.away, 0.0)
        self._places: dict[Path, Place] = {}
        self._looked = 0
        """Up to where in the journal the bases of pending jobs were looked for."""
        self._unfound: set[str] = set()
        """Pending jobs whose base is still to be looked for."""
        self.installing = Installing(self.settings.state_directory, self.wake)
        self._configure()

    def _configure(self) -> None:
        settings, paths = self.settings, self.paths
        self._bases = Bases(settings.base.search, settings.base.map)
        self._resumption = Resumption(
            self.journal, OutputCache(paths.kept), paths.staging, lambda job: self.work_of(settings, job), settings.limits.device, self.wake
        )  # fmt: skip
        self.away.patience = HOUR * settings.limits.away_hours
        folders = ((paths.output, "output.directory"), (pins_of(settings.pin, paths), "pin.directory"))
        for folder, key in folders:
            if folder not in self._places:  # once: by a later look its mount may be away
                self._places[folder] = Place.of(folder, key)
        places = [self._places[folder] for folder, _ in folders]
        self._gate = Gate(
            self._bases, places, self.away, self.waits, self.wake, Toolchains.home_of(settings.state_directory), at_once=self.at_once
        )
        self._unfound |= {job for job, one in self.waits.of.items() if one.fault.code in FOR_SOURCES}
        self._starter = Starter(
            settings, self.journal, paths, self.children, self.waits, self._resumption, self._bases, self.installing, self._gate
        )  # fmt: skip

    # Life

    def recover(self) -> None:
        """Settle or take over what a dead daemon left open; must be called before the first tick, in the thread of the ticks or before that
        thread begins. Where the journal can't be written now, `run` does the rest of it first."""
        limits = self.settings.limits
        mine = {running.id for running in self.children.running.values()}
        for row, left in left_open(self.journal, self.executor, bounds_of(limits), mine):
            if left is not None and not isinstance(left, StageResult):
                if self._take_over(row, left):
                    continue
                left = end(left)
            result = left or StageResult(outcome=Outcome.INTERRUPTED)
            settle(self.journal, limits, row.id, result, crashed=left is None and not self.full_before)
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
            size = ask(f"size {folder}", lambda: self._bases.size(folder), ANSWER_SECONDS)
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
        self._resumption.close()

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
            self._resumption.close()
            self._configure()
            self.waits.of.clear()

    def _sleep(self) -> None:
        if self.children.running:
            self.children.wait(NEWS_SECONDS)
        else:
            self._wake.wait(self.waits.pause(1.0) if len(self.waits) else IDLE_SECONDS)
            self._wake.clear()

    def _end_children(self) -> None:
        """Stop the children and record them; what the journal can't take now, the next start finds and records."""
        complaints, failures = Complaints(log, "the runner"), 0
        patience = time.monotonic() + self.settings.limits.stop_seconds + STUCK_SECONDS
        self.children.stop()
        while self.children.running and failures < JOURNAL_TRIES and time.monotonic() < patience:
            if self._hurry:
                self.children.stop(hurry=True)
            failures += not complaints.during(self._reap)
            time.sleep(0.02)

    def is_of_another_base(self, job: JobRow) -> bool:
        """Whether what the job has made so far was made of another base than is found for it now, or by other versions.

        For who asks whether it may go on, or stand: a running job keeps to the base that it began with. Raises Retryable and OSError.
        """
        folder, _ = self._bases.find(job.checkpoint)
        stages = self.journal.stages.of(job.id)
        made = next((stage for stage in stages.values() if stage.key), None)
        if folder is None or made is None:
            return folder is not None and job.base is not None and folder != job.base
        now, stages = replace(job, base=folder), {made.name: made}
        return keys_of(now, stages, self.settings.limits.device, sources_of(now, stages))[made.name] != made.key

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
        return not (self.children.running or self.installing.name or self._left or len(self.waits) or jobs.open_ids() or jobs.untidy())

    def tick(self) -> None:
        """One round: take in what ended, then start what can be started."""
        self._adopt_settings()
        self._take_room()
        self._reap()
        self._clear_ended()
        self.installing.look()
        self._end_waits()
        if not self.at_once:
            self._look_at_new()
        self.children.relieve(int(self.settings.limits.memory_reserve))
        if self.settings.schedule.overrun == "stop" and not self._starter.windows.is_open(datetime.now(UTC)):
            self.children.stop_heavy()
        may_start = self.journal.controls.paused_since() is None
        jobs = self.journal.jobs.running()
        for job in jobs:
            self._try(job, may_start)
        tried: set[str] = set()
        while may_start and not self._stopping and (following := self._next_job(jobs, tried)):
            tried.add(following.id)
            self._try(following, may_start)
            now = self.journal.jobs.get(following.id)
            if now is None or now.state != "pending":  # else it could not be started, and the next one has its turn
                jobs.append(following)
        self._starter.end_round()

    def _next_job(self, jobs: list[JobRow], tried: set[str]) -> JobRow | None:
        """The pending job to start now, if there is room for one: none of those `tried` in this round, and none that waits."""
        awake = [job for job in jobs if not job.paused]
        limit = self.settings.limits.jobs
        if len([job for job in awake if not self.waits.leaves_room(job.id)]) >= limit or max(len(awake), len(tried)) >= limit + SPARE_JOBS:
            return None
        but = tried | {job for job in self.waits.of if not self.waits.may_move(job)}
        preferred = self.journal.jobs.preferred(but)
        lane = None if preferred else next_lane(self.journal.jobs.lanes(but))
        return preferred or (self.journal.jobs.first_of(lane, but) if lane else None)

    def _try(self, job: JobRow, may_start: bool) -> None:
        """Advance a job; one that can't be worked on never keeps the others from it."""
        if not may_start or job.paused:
            self._starter.forget(job.id)  # also of one that waits, however short the pause is
        if self._stopping or not self.waits.may_move(job.id):
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

    def _clear_ended(self) -> None:
        """End the children of superseded and cancelled jobs in order, then remove what is left of those jobs."""
        self._tidy_left()
        for job in self.journal.jobs.untidy():
            children = self.children.of(job.id)
            for running in children:
                running.stop()
            if children:
                continue
            if not self._is_tidied(job):
                continue
            self._forget(job.id)
            self.journal.jobs.tidied(job.id)
            log.warning(
                "export given up",
                event_id=Event.EXPORT_GIVEN_UP,
                job=job.id,
                run=job.checkpoint.run,
                step=job.checkpoint.step,
                state=job.state,
                reason=job.reason,
            )
            self.changed()

    def _end_waits(self) -> None:
        """What has ended waits for nothing, also where it ended in a round that failed."""
        for job in list(self.waits.of.keys() - self.journal.jobs.open_ids()) if len(self.waits) else ():
            self.waits.end(job)
            self.away.ended(job)

    def _is_rewritten(self, job: JobRow) -> bool:
        """Whether the trainer wrote into a file that the pin shares with it; the job is superseded then."""
        try:
            name = rewritten(job.pin)
        except OSError as error:
            if not is_away(error):
                raise
            name = None  # what is away can't be told from what it was, and is waited for
        if name is None:
            return False
        self.journal.jobs.supersede(
            job.id, f"{IN_PLACE}{name} in place while it was exported; the new content is exported as a new checkpoint"
        )
        return True

    def _advance(self, job: JobRow, may_start: bool) -> None:
        """Move a job by as much as needs no child, then start the stages that are ready."""
        started = self._start_job(job) if job.state == "pending" else job
        if started is None or self._is_rewritten(started):
            return
        prepared = self._resumption.adopt(started)
        seen = self._look(prepared)
        if seen is None:
            return
        if not self._resumption.prepare(prepared, seen.sources):
            self.waits.add(job.id, verifying(), 0.0)
            return
        moved = True
        while moved:
            stages = self.journal.stages.of(job.id)
            if take_steps_down(self.journal, prepared, stages):
                continue
            if all(stage.state in ENDED_STAGE for stage in stages.values()):
                self._finish(prepared, stages)
                return
            moved = self._starter.move(prepared, stages, seen, may_start=may_start and not prepared.paused)
            self.changed()

    def _look(self, job: JobRow) -> Seen | None:
        """What a job's stages read from outside; None where it waits for that. Where no stage is left to be made, only the places that it
        is published to and cleared away from are looked at."""
        stages, known = self.journal.stages.of(job.id), self._resumption.known(job.id)
        if known is not None and all(stage.state != "waiting" for stage in stages.values()):
            return self._gate.places(job, known)
        return self._gate.look(job, stages, known)

    def _look_at_new(self) -> None:
        """Find out at once whether the base of a job that waits for its turn is there, so that it is said before that has come."""
        entered, self._looked = self.journal.jobs.pending_after(self._looked, NEW_LOOKS)
        self._unfound |= {*entered}
        due = [job for job, one in self.waits.of.items() if one.fault.code in FOR_SOURCES and self.waits.may_move(job)]
        due.sort(key=lambda job: self.waits.of[job].until)
        for job in [*dict.fromkeys([*sorted(self._unfound), *due])][:NEW_LOOKS]:
            row = self.journal.jobs.get(job)
            if row is not None and row.state == "pending":
                with structlog.contextvars.bound_contextvars(job=job, run=row.checkpoint.run, step=row.checkpoint.step):
                    seen = self._gate.find_base(row)
                if seen is not None:
                    self.waits.end(job)
                elif job not in self.waits:
                    continue  # its file system has not answered yet
            self._unfound.discard(job)

    def _start_job(self, job: JobRow) -> JobRow | None:
        """pending → running; None where it waits for its base, or was superseded meanwhile.

        A base that is damaged fails the first stage, as does one that was waited for long enough; a model that variants can't be made of
        fails these. The report says so.
        """
        seen = self._gate.find_base(job)
        if seen is None:
            return None
        folder, fault = seen.base, seen.fault
        if not self.journal.jobs.start(job.id, folder):
            return None
        if refuse_early(job, self.journal, self.paths, self.settings):
            self._left[job.id] = job
            self._forget(job.id)
            self.wake()  # the next one need not wait for the end of a pause
            self.changed()
            self._tidy_left()  # not in the next round: the daemon may be told to stop before that
            return None
        log.info("export started", event_id=Event.EXPORT_STARTED, base=str(folder) if folder else None)
        waiting = [stage.name for stage in self.journal.stages.of(job.id).values() if stage.state == "waiting"]
        first = next(iter(self.journal.stages.of(job.id)))
        if fault:
            self._fail({first: fault} if first in waiting else {}, job)
        else:
            self._refuse(job, waiting, config_of(folder or job.pin))
        self.changed()
        return self.journal.jobs.get(job.id)

    def _refuse(self, job: JobRow, waiting: Sequence[str], config: Json) -> None:
        """Fail the waiting stages that can't be made of the model; where none of the variants can, there is nothing to do but report."""
        export = job.work.export
        refused = unsuited(map(spec_of, waiting), config, as_asked("export.variants"))
        self._fail(refused, job)
        if refused and refused.keys() >= {*effective_variants(export.variants, export.quantization)}:
            for name in waiting:
                if name != "report" and name not in refused:
                    self.journal.stages.end(job.id, name, "skipped", useless(name))

    def _fail(self, faults: Mapping[str, Fault], job: JobRow) -> None:
        """Fail stages of a job before a child makes sense."""
        for name, fault in faults.items():
            log.error(fault.sentence(), event_id=Event.EXPORT_FAULT, stage=name, code=fault.code)
            self.journal.stages.end(job.id, name, "failed", fault)

    # Outcomes

    def _reap(self) -> None:
        """Take in progress and the results of children that ended."""
        for running, result in self.children.finished():
            job = running.job
            context = {"job": job.id, "run": job.checkpoint.run, "step": job.checkpoint.step}
            with structlog.contextvars.bound_contextvars(**context):
                if self._is_rewritten(job) or self._inputs_vanished(running):
                    result = self.children.interrupted(result)
                result = self._if_away(job, result)
                settle(self.journal, self.settings.limits, running.id, result, measured=measure(running, result))
            self.waits.refused(result.fault)
            self.children.forget(running)  # last: if the journal could not take it, the next round tries again
            self.waits.end(job.id)
        if self.children.running:
            self.changed()

    def _if_away(self, job: JobRow, result: StageResult) -> StageResult:
        """The result of an attempt, with what follows where it met something that was away: a pause, and an end after long enough."""
        if result.outcome == Outcome.SUCCEEDED:
            self.away.further(job.id)
        fault = result.fault
        if fault is None or not self._gate.is_away(fault):
            return result
        fault = fault.model_copy(update={"code": FaultCode.SOURCE_AWAY})
        told = self._gate.told(fault)
        pause = self._gate.waits(job, key_of(job, fault.path or job.id, self._gate.toolchains), told)
        if pause is None:
            return result.model_copy(update={"outcome": Outcome.PERMANENT, "fault": self._gate.given_up(fault)})
        return result.model_copy(update={"outcome": Outcome.RETRYABLE, "fault": told, "retry_after": pause})

    def _inputs_vanished(self, running: Running) -> bool:
        """Whether somebody removed what the attempt read; finished stages are then verified, and made again, first."""
        if inputs_are_there(self.journal, running):
            return False
        log.warning("what the stage read was removed while it ran; it is made again", event_id=Event.STAGE_REPEATED, stage=running.stage)
        self._resumption.forget(running.job.id)
        return True

    def _finish(self, job: JobRow, stages: dict[str, StageRow]) -> None:
        fault = close_job(job, stages, self.journal, self.paths, self.settings)
        if fault:
            self._resumption.forget(job.id)  # what was finished may be what is gone
            self.waits.refused(fault)
            self._gate.refused(job, fault)
            return
        self._left[job.id] = job  # first: whatever fails below, it is over and has to be cleared away
        try:
            refused = self._resumption.keep(job, stages, int(self.settings.output.kept_size))
        finally:
            self._forget(job.id)
        self.waits.refused(refused)
        self.wake()  # the next one need not wait for the end of a pause
        self.changed()
        self._tidy_left()

    def _tidy_left(self) -> None:
        """Clear away what finished jobs leave; one whose pin is being made again has its turn in a later round."""
        for job in list(self._left.values()):
            if self._is_tidied(job):
                del self._left[job.id]

    def _is_tidied(self, job: JobRow) -> bool:
        """Clear away what an ended job leaves; False where that is to be tried again in a later round, which keeps no other job waiting."""
        try:
            done = tidy_job(job, self.journal, self.paths)
        except (OSError, CkptdError) as error:
            operation = "remove what the export no longer needs"
            fault = error.fault if isinstance(error, CkptdError) else from_oserror(error, operation, str(job.pin)).fault
            if self._stays.get(job.id) != fault.code:
                log.warning(fault.sentence(), event_id=Event.EXPORT_FAULT, job=job.id, code=fault.code)
            self._stays[job.id] = fault.code
            return False
        if done:
            self._stays.pop(job.id, None)
        return done

    def _forget(self, job: str) -> None:
        self.waits.end(job)
        self._resumption.forget(job)
        self._starter.forget(job)
        self.away.ended(job)
