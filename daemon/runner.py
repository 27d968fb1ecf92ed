"""Picks ready stages, starts their children, and records how they ended: the one loop through which all work goes.

A restart has no path of its own: attempts of a dead daemon are settled as interrupted (or taken as they are, if
their result was complete) and the work is picked up by the same `tick`. Runs in one permanent thread, since
children are bound to the thread that spawned them.
"""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from daemon import faults
from daemon.base import Bases
from daemon.contract import Outcome, StageResult
from daemon.durable import remove_tree
from daemon.errors import Fault, from_oserror
from daemon.facts import facts_of
from daemon.finish import collect_orphans, message_of, prune, publish_job, reopen_damaged, tidy_job
from daemon.journal import Journal
from daemon.launch import make_context
from daemon.paths import Paths
from daemon.pin import pins_of, rewritten
from daemon.resources import WAIT_SECONDS, admit
from daemon.retry import decide
from daemon.rows import ENDED_STAGE, AttemptRow, JobRow, StageRow
from daemon.settings import Settings
from daemon.steps import because_of, next_stage, retrying
from daemon.worker import Worker, kill_stray, read_result
from handlers.plan import StageSpec

log = structlog.get_logger("runner")


IDLE_SECONDS = 3.0
"""Pause between looks into the journal while nothing runs: `ckptd retry` puts work there from outside."""


@dataclass
class Running:
    """A child and the attempt it is."""

    job: JobRow
    stage: str
    number: int
    staging: Path
    worker: Worker
    warned: int = 0


@dataclass
class Waiting:
    """Why a job does not move, and until when (monotonic) nobody asks again."""

    fault: Fault
    until: float


@dataclass
class Runner:
    """Works through the journal with up to `limits.jobs` children."""

    settings: Settings
    journal: Journal
    paths: Paths
    changed: Callable[[], None] = lambda: None
    """Called after whatever people may want to see."""
    running: dict[str, Running] = field(default_factory=dict)
    waiting: dict[str, Waiting] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._bases = Bases(self.settings.base.search, self.settings.base.map)
        self._jitter = random.Random()
        self._wake = threading.Event()
        self._stopping = False

    # Life

    def recover(self) -> None:
        """Settle what a dead daemon left open; must be called once, before the first tick."""
        for attempt in self.journal.open_attempts():
            if kill_stray(attempt.pid, attempt.process_started):
                log.warning("a child outlived its daemon and was killed", job=attempt.job, stage=attempt.stage, pid=attempt.pid)
            result = read_result(attempt.folder / "result.json") or StageResult(outcome=Outcome.INTERRUPTED)
            self._settle(attempt, result)
            log.info("resumed", job=attempt.job, stage=attempt.stage, attempt=attempt.number, outcome=str(result.outcome))
        for job, stage in reopen_damaged(self.journal):
            log.warning("the output of a finished stage is gone; it is made again", job=job, stage=stage)
        for path in collect_orphans(self.journal, self.paths, pins_of(self.settings.pin, self.paths)):
            log.info("removed what no job needs", path=path)

    def run(self) -> None:
        """Work until `stop`; then end the children and record them as interrupted."""
        while not self._stopping:
            try:
                self.tick()
            except Exception:
                log.exception("the runner met an error and goes on")
                time.sleep(1)
            self._sleep()
        self._end_children()

    def stop(self) -> None:
        """Let `run` return; may be called from any thread."""
        self._stopping = True
        self._wake.set()

    def wake(self) -> None:
        """There may be new work; may be called from any thread."""
        self._wake.set()

    def _sleep(self) -> None:
        if self.running:
            poll = select.poll()
            for running in self.running.values():
                if not running.worker.ended:
                    poll.register(running.worker.pipe, select.POLLIN)
            poll.poll(250)
            time.sleep(0.02)  # a child that talks a lot must not make this loop spin
        else:
            self._wake.wait(1.0 if self.waiting else IDLE_SECONDS)
            self._wake.clear()

    def _end_children(self) -> None:
        for running in self.running.values():
            running.worker.stop()
        while self.running:
            self._reap()
            time.sleep(0.02)

    # Work

    def tick(self) -> None:
        """One round: take in what ended, then start what can be started."""
        self._reap()
        self._clear_superseded()
        for job in self.journal.open_jobs():
            if len(self.running) >= self.settings.limits.jobs or self._stopping:
                return
            if job.id not in self.running and self._ready(job.id):
                with structlog.contextvars.bound_contextvars(job=job.id, run=job.checkpoint.run, step=job.checkpoint.step):
                    self._advance(job)

    def _clear_superseded(self) -> None:
        """End the children of superseded jobs in order, then remove what is left of those jobs."""
        for job in self.journal.untidy_jobs():
            if job.id in self.running:
                self.running[job.id].worker.stop()
                continue
            tidy_job(job, self.paths)
            self.waiting.pop(job.id, None)
            self.journal.tidied(job.id)
            log.warning("export given up", job=job.id, run=job.checkpoint.run, step=job.checkpoint.step, reason=job.reason)
            self.changed()

    def _is_rewritten(self, job: JobRow) -> bool:
        """Whether the trainer wrote into a file that the pin shares with it; the job is superseded then."""
        name = rewritten(job.pin)
        if name is None:
            return False
        self.journal.supersede_job(
            job.id, f"the trainer rewrote {name} in place while it was exported; what is there now is a checkpoint of its own"
        )
        return True

    def _ready(self, job: str) -> bool:
        waiting = self.waiting.get(job)
        return waiting is None or time.monotonic() >= waiting.until

    def _advance(self, job: JobRow) -> None:
        """Move a job by as much as needs no child, then start the next stage that is ready."""
        started = self._start_job(job) if job.state == "pending" else job
        if started is None or self._is_rewritten(started):
            return
        job = started
        while True:
            stages = self.journal.stages(job.id)
            spec = next_stage(stages)
            if spec is None:
                if all(stage.state in ENDED_STAGE for stage in stages.values()):
                    self._finish(job, stages)
                return
            broken = [need for need in spec.needs if stages[need].state in ("failed", "skipped")]
            if broken:
                self.journal.end_stage(job.id, spec.name, "skipped", because_of(broken[0], stages[broken[0]], spec))
                continue
            if not stages[spec.name].due(time.time()):
                self.waiting[job.id] = Waiting(stages[spec.name].fault or retrying(spec), time.monotonic() + 1)
                return
            if not self._start_stage(job, spec, stages):
                return

    def _start_job(self, job: JobRow) -> JobRow | None:
        """pending → running; None where it was superseded meanwhile.

        A base that can't be found fails the merge at once, and the report says so.
        """
        folder, fault = self._bases.find(job.checkpoint)
        if not self.journal.start_job(job.id, folder):
            return None
        log.info("export started", base=str(folder) if folder else None)
        if fault and self.journal.stages(job.id)["merge"].state == "waiting":
            log.error(fault.sentence(), code=fault.code)
            self.journal.end_stage(job.id, "merge", "failed", fault)
        self.changed()
        return self.journal.job(job.id)

    def _start_stage(self, job: JobRow, spec: StageSpec, stages: dict[str, StageRow]) -> bool:
        """Start the stage's child, wait, or (True: the job can move on at once) fail the stage for good."""
        limits = self.settings.limits
        admission = admit(
            spec, self._bases.size(job.base or job.pin), output=self.paths.output, state=self.paths.state,
            memory_fraction=limits.memory_fraction, disk_reserve=int(limits.disk_reserve),
        )  # fmt: skip
        if admission.fault and admission.never:
            log.error(admission.fault.sentence(), stage=spec.name, code=admission.fault.code)
            self.journal.end_stage(job.id, spec.name, "failed", admission.fault)
            return True
        if admission.fault:
            if job.id not in self.waiting or self.waiting[job.id].fault.code != admission.fault.code:
                log.warning(f"waiting: {admission.fault.sentence()}", stage=spec.name, code=admission.fault.code)
            self.waiting[job.id] = Waiting(admission.fault, time.monotonic() + WAIT_SECONDS)
            self.changed()
            return False
        self.waiting.pop(job.id, None)
        self._spawn(job, spec, stages, admission.estimate)
        return False

    def _spawn(self, job: JobRow, spec: StageSpec, stages: dict[str, StageRow], estimate: int) -> None:
        number = stages[spec.name].attempts + 1
        folder = self.paths.attempt(job.id, spec.name, number)
        staging = self.paths.staging / job.id / f"{spec.name}.{number}"
        try:
            for path in (folder, staging):
                remove_tree(path)
                path.mkdir(parents=True)
        except OSError as error:
            self._hold(job, from_oserror(error, f"make the folders of stage {spec.name}").fault)
            return
        context = make_context(self.settings, self.paths, job, spec.name, number, stages)
        if spec.name == "report":
            context = context.model_copy(update={"facts": facts_of(self.journal, job)})
        self.journal.claim(job.id, spec.name, number, context.strategy, folder, staging, estimate)
        try:
            worker = Worker(context, folder, self.settings.limits.stage_timeout)
        except OSError as error:
            fault = from_oserror(error, f"start the stage {spec.name}").fault
            self._settle(self._attempt(job.id, spec.name, number), StageResult(outcome=Outcome.RETRYABLE, fault=fault))
            return
        self.running[job.id] = Running(job, spec.name, number, staging, worker)
        self.journal.spawned((job.id, spec.name, number), worker.process.pid, worker.process_started)
        faults.point("runner.spawned")
        log.info("stage started", stage=spec.name, attempt=number, pid=worker.process.pid)
        self.changed()

    def _attempt(self, job: str, stage: str, number: int) -> AttemptRow:
        return next(row for row in self.journal.attempts(job) if row.stage == stage and row.number == number)

    def _reap(self) -> None:
        """Take in progress and the results of children that ended."""
        for job_id, running in list(self.running.items()):
            result = running.worker.poll()
            context = {"job": job_id, "run": running.job.checkpoint.run, "step": running.job.checkpoint.step, "stage": running.stage,
                       "attempt": running.number}  # fmt: skip
            for message in running.worker.warnings[running.warned :]:
                log.warning(message, **context)
            running.warned = len(running.worker.warnings)
            if result is None:
                continue
            with structlog.contextvars.bound_contextvars(**context):
                if self._is_rewritten(running.job):
                    result = StageResult(outcome=Outcome.INTERRUPTED, seconds=result.seconds)
                self._settle(self._attempt(job_id, running.stage, running.number), result)
            del self.running[job_id]  # last: if the journal could not take it, the next round tries again
        if self.running:
            self.changed()

    def _settle(self, attempt: AttemptRow, result: StageResult) -> None:
        """Record an outcome and clear away what a failed attempt wrote."""
        stage = self.journal.stages(attempt.job)[attempt.stage]
        limits = self.settings.limits
        decision = decide(result, stage.failures, limits.attempts, limits.retry_seconds, self._jitter)
        if result.outcome != Outcome.SUCCEEDED:
            remove_tree(attempt.staging)
        remove_tree(attempt.folder / "tmp")
        self.journal.settle_attempt(
            attempt.job, attempt.stage, attempt.number, result, state=decision.state, staging=attempt.staging, retry_delay=decision.delay
        )
        if result.outcome == Outcome.SUCCEEDED:
            log.info("stage succeeded", stage=attempt.stage, attempt=attempt.number, seconds=result.seconds, strategy=result.strategy)
        elif result.fault:
            say = log.error if decision.state == "failed" else log.warning
            say(result.fault.sentence(), stage=attempt.stage, attempt=attempt.number, code=result.fault.code, outcome=str(result.outcome),
                retry_in=round(decision.delay, 1) if decision.delay is not None else None, log=str(attempt.folder / "log.txt"))  # fmt: skip
        for fallback in result.fallbacks:
            log.warning("fallback taken", stage=attempt.stage, wanted=fallback.wanted, taken=fallback.taken, reason=fallback.reason)
        self.changed()

    # The end of a job

    def _finish(self, job: JobRow, stages: dict[str, StageRow]) -> None:
        current = self.journal.job(job.id)
        if current is None or current.state != "running":
            return  # superseded since this round began
        try:
            published = publish_job(
                job, facts_of(self.journal, job), stages, self.paths, keep_rejected=self.settings.output.keep_rejected
            )  # fmt: skip
        except OSError as error:
            self._hold(job, from_oserror(error, f"publish the export of {job.checkpoint.run} step {job.checkpoint.step}").fault)
            return
        wanted = published.state in self.settings.notify.on and self.settings.notify.urls
        if not self.journal.finish_job(job.id, published.state, message_of(job, stages, published) if wanted else None):
            return  # superseded while it was published: the newer export replaces this one
        self.waiting.pop(job.id, None)
        log.info("export finished", state=published.state, target=str(published.target),
                 artifacts={check.variant: str(check.verdict) for check in published.checks})  # fmt: skip
        tidy_job(job, self.paths)
        if self.settings.retention.keep_last:
            for path in prune(published.target.parent, job.checkpoint.run, self.settings.retention.keep_last):
                log.info("removed an old export", path=str(path))
        self.changed()

    def _hold(self, job: JobRow, fault: Fault) -> None:
        """Something outside the stages failed (a disk, a permission): say it once and try again later."""
        if job.id not in self.waiting or self.waiting[job.id].fault != fault:
            log.error(fault.sentence(), code=fault.code)
        self.waiting[job.id] = Waiting(fault, time.monotonic() + WAIT_SECONDS)
        self.changed()
