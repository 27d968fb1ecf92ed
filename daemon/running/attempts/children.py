"""The attempts that run now: starting them, taking them over from a daemon that died, the resources reserved for them, and their end.

A part of the runner and used by its one permanent thread alone, as executors ask for. Only `running` is read by others, who copy it
first.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from daemon.config.places.paths import Paths
from daemon.config.settings import LimitSettings
from daemon.contract import cpu, units
from daemon.contract.disk import away, failpoints
from daemon.contract.disk.files import odd_below, remove_tree
from daemon.contract.disk.own_folders import own
from daemon.contract.faults.errors import Fault, Permanent, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import ModelSize, StageSpec
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult
from daemon.contract.jobs.plan import find_spec
from daemon.contract.jobs.points import RunFigures
from daemon.contract.language.catalog import Language
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptRow, JobRow
from daemon.running.attempts.executor import Attempt, CpuShare, Executor, Order, Progress, Whereabouts, read_job_file, wait_for_news
from daemon.running.attempts.job_file import ReadyStage, bounds_of, make_context, priority_named, staging_of
from daemon.running.rules.admission import Reserved
from daemon.running.rules.estimates import Estimate
from daemon.running.rules.resume_keys import ELSEWHERE
from daemon.system.box import memory
from daemon.system.logger import Logger
from daemon.system.processes.rivals import Rivals

log = Logger("runner")

PRESSURE_SECONDS = 3.0
"""Seconds between two attempts that are ended because of too little memory: the first one's memory must be free again."""
_NO_PROCESS = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE})
"""What a system without room for another process says."""
NO_ANSWER_SECONDS = 600.0
"""How long an executor may fail at every question about an attempt: what it runs elsewhere may be out of reach for a while."""
UNHEARD_SECONDS = 30.0
"""How long that lasts until the daemon is called unwell for it."""
STARVED_SECONDS = 180.0
"""How long an attempt is kept from the CPU time that it could use until the daemon's condition says so."""
FED_SECONDS = 30.0
"""How long it must get its share until that counts as over."""


@dataclass
class Running:
    """An attempt that runs, and what the runner knows of it."""

    job: JobRow
    spec: StageSpec
    context: StageContext
    row: AttemptRow
    """As the journal holds it since it was claimed."""
    attempt: Attempt
    size: ModelSize
    estimate: Estimate
    began: float
    """By the monotonic clock; before zero where it began before the box did."""
    memory: int = 0
    """As `Attempt.memory`, as of the last `poll`. This and the next two may be asked from any thread, whatever the executor does."""
    progress: Progress = field(default_factory=Progress)
    """As `Attempt.progress`, of the same moment."""
    cpu: CpuShare | None = None
    """As `Attempt.cpu`, of the same moment."""
    starved_since: float | None = None
    """Since when, by the monotonic clock, others have kept it from most of the CPU time that it could use; None while they do not."""
    fed_since: float | None = None
    """Since when it has got its share again."""
    place: Whereabouts | None = None
    """As `Attempt.place`, of the same moment as `memory`."""
    warned: int = 0
    unanswered: float | None = None
    """Since when, by the monotonic clock, its executor has failed at every question about it; None where it answers."""
    untold: bool = False
    """Its executor failed to tell it to end, and that was said."""

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return self.spec.name

    @property
    def priority(self) -> str:
        """Its priority, as `limits.priority` has it."""
        return priority_named(self.context.limits)

    def poll(self) -> StageResult | None:
        """Its result once it has ended. An executor that fails at this one attempt never keeps the caller from the others: the attempt
        counts as running, and as failed once there was no answer for `NO_ANSWER_SECONDS`."""
        try:
            result = self.attempt.poll()
            self.memory, self.progress, self.cpu = self.attempt.memory, self.attempt.progress, self.attempt.cpu
            self.place = self.attempt.place
            self._note_starvation(time.monotonic())
            self._pass_on(self.attempt.warnings)
            if result is not None:
                result = result.model_copy(update={"peak_rss": max(result.peak_rss, self.attempt.peak)})
        except Exception as error:
            return self._no_answer(error)
        self.unanswered = None
        return result

    def _note_starvation(self, now: float) -> None:
        if self.cpu is not None and self.cpu.starved:
            self.starved_since, self.fed_since = self.starved_since or now, None
        elif self.starved_since is not None:
            self.fed_since = self.fed_since or now
            if now - self.fed_since >= FED_SECONDS:
                self.starved_since = self.fed_since = None

    def _pass_on(self, warnings: Sequence[str]) -> None:
        checkpoint = self.job.checkpoint
        for message in warnings[self.warned :]:
            log.warning(message, event_id=Event.STAGE_WARNING, job=self.job.id, run=checkpoint.run, step=checkpoint.step, stage=self.stage)
        self.warned = len(warnings)

    def stop(self, fault: Fault | None = None) -> None:
        """As `Attempt.stop`; what the executor raises is said."""
        try:
            self.attempt.stop(fault)
        except Exception:
            self._not_told()

    def hurry(self) -> None:
        """As `Attempt.hurry`; what the executor raises is said."""
        try:
            self.attempt.hurry()
        except Exception:
            self._not_told()

    def _not_told(self) -> None:
        if not self.untold:
            self.untold = True
            log.exception(
                "an attempt can't be told to end; it is tried again, the others go on", event_id=Event.ATTEMPT_UNREACHABLE, stage=self.stage
            )

    def _no_answer(self, error: Exception) -> StageResult | None:
        now, cause = time.monotonic(), f"{type(error).__name__}: {error}"
        if self.unanswered is None:
            self.unanswered = now
            log.exception(
                "an attempt can't be asked how it is; it is tried again, the others go on",
                event_id=Event.ATTEMPT_UNREACHABLE,
                stage=self.stage,
            )
        if now - self.unanswered < NO_ANSWER_SECONDS:
            return None
        self.hurry()  # it may run on, where it can still be told
        fault = Fault(
            code=FaultCode.UNEXPECTED, operation=f"run the stage {self.stage}", remedy="report it with the traceback in the log",
            cause=f"it gave no answer for {NO_ANSWER_SECONDS:.0f} s: {cause}",
        )  # fmt: skip
        return StageResult(outcome=Outcome.RETRYABLE, fault=fault)


@dataclass(frozen=True)
class Grant:
    """What an attempt is started with."""

    threads: int
    size: ModelSize
    """Of the base, from which the need was estimated."""
    need: Estimate
    """What is promised to it, of memory and disk."""
    access: str | None = None
    """What the report says of who may read the export."""
    run: RunFigures | None = None
    """What the report is told of the run's other exports."""
    language: Language = "en"
    """Of its page."""


class Children:
    """Running attempts by (job, stage). `executor` is what runs them."""

    def __init__(self, journal: Journal, paths: Paths, executor: Executor) -> None:
        self._journal, self._paths, self._executor = journal, paths, executor
        self._relieved = 0.0
        self.running: dict[tuple[str, str], Running] = {}
        self.rivals = Rivals()
        """What has the CPU time of attempts that are starved."""

    def of(self, job: str) -> list[Running]:
        """The running attempts of one job."""
        return [running for (owner, _), running in self.running.items() if owner == job]

    def jobs(self) -> list[str]:
        """The ids of the jobs that have running attempts, sorted."""
        return sorted({job for job, _ in self.running})

    def runs_here(self, spec: StageSpec) -> bool:
        """Whether a stage takes memory and threads of this box."""
        return self._executor.runs_here(spec)

    def machine_of(self, spec: StageSpec) -> object:
        """What an output of a stage depends on of the machine that makes it (`resume_keys`)."""
        return cpu.here().key if self.runs_here(spec) else ELSEWHERE

    def reserved(self) -> Reserved:
        """What of this box is reserved for the attempts and not used yet."""
        memory_left = sum(max(0, running.estimate.memory - running.memory) for running in self.here())
        return Reserved(memory_left, sum(running.estimate.disk for running in self.running.values()))

    def threads(self, job: str = "") -> int:
        """Threads of this box that attempts have: those of one job, or of all."""
        return sum(running.context.limits.threads for running in self.here() if job in ("", running.job.id))

    def here(self) -> list[Running]:
        """The attempts that take memory and threads of this box."""
        return [running for running in self.running.values() if self.runs_here(running.spec)]

    def getting_ready(self, ready: ReadyStage, grant: Grant, limits: LimitSettings) -> bool:
        """Whether an attempt had better be started in a moment, as an executor that has this method may say."""
        ask = getattr(self._executor, "getting_ready", None)
        return ask is not None and bool(ask(make_context(ready, self._paths, limits, grant.threads), bounds_of(limits)))

    def start(self, ready: ReadyStage, grant: Grant, limits: LimitSettings) -> tuple[Fault | None, AttemptRow | None]:
        """Claim and start the next attempt of a stage; gives the fault that keeps it from starting, and the attempt if it was claimed."""
        job, spec, mine, need = ready.job, ready.spec, ready.attempt, grant.need
        folder, staging = self._paths.attempt(job.id, spec.name, mine.number), staging_of(self._paths, mine)
        try:
            remove_tree(folder)
            folder.mkdir(parents=True)
            inode = self._make_staging(spec, staging, same=ready.row.key == ready.key)
        except OSError as error:
            operation = f"make the folders of stage {spec.name}"
            return self._away(error, operation) or from_oserror(error, operation).fault, None
        except Permanent as error:
            return error.fault, None
        context = make_context(ready, self._paths, limits, grant.threads)
        context = context.model_copy(update={"strategy": need.strategy, "staging_inode": inode})
        if spec.name == "report":
            facts = self._journal.attempts.facts(job, ready.stages)
            facts = facts.model_copy(update={"run": grant.run, "access": grant.access})
            context = context.model_copy(update={"facts": facts, "language": grant.language})
        row = self._journal.attempts.claim(Intent(mine, folder, staging, need.memory, context.strategy, ready.key))
        if row is None:
            return None, None
        try:
            attempt = self._executor.start(Order(context, folder, bounds_of(limits, need.memory), need.memory))
        except (OSError, MemoryError) as error:
            operation = f"start the stage {spec.name}"
            return self._away(error, operation) or _not_started(error, operation), row
        except Exception as error:  # an executor's own; without an end to its tries it would be started for ever
            log.exception("an attempt could not be started", event_id=Event.ATTEMPT_NOT_STARTED)
            cause, remedy = f"{type(error).__name__}: {error}", "report it with the traceback in the log"
            return Fault(code=FaultCode.UNEXPECTED, operation=f"start the stage {spec.name}", cause=cause, remedy=remedy), row
        self.running[job.id, spec.name] = Running(job, spec, context, row, attempt, grant.size, need, time.monotonic())
        self._journal.attempts.started(mine, attempt.id)
        failpoints.point("runner.spawned")
        log.info("stage started", event_id=Event.STAGE_STARTED, stage=spec.name, attempt=mine.number, id=attempt.id, threads=grant.threads,
                 estimated_memory=units.size(need.memory))  # fmt: skip
        return None, row

    def take_over(self, row: AttemptRow, job: JobRow, attempt: Attempt, size: ModelSize) -> bool:
        """Go on with an attempt that a daemon that died had started; False where this version has no such stage or can't read its job."""
        spec, context = find_spec(row.stage), read_job_file(row.folder)
        if spec is None or context is None:
            return False
        age = (datetime.now(UTC) - datetime.fromisoformat(row.started)).total_seconds()
        need = Estimate(row.estimate or 0, spec.disk(size.written_in(job.work.merge.dtype)), "its claim")
        self.running[job.id, spec.name] = Running(job, spec, context, row, attempt, size, need, time.monotonic() - max(0.0, age))
        return True

    def wait(self, seconds: float) -> None:
        """Return when there may be news of an attempt, at the latest after `seconds`."""
        wait_for_news([running.attempt for running in self.running.values()], seconds)

    def _make_staging(self, spec: StageSpec, staging: Path, *, same: bool) -> int:
        """An empty folder; for a resumable stage with the same key the one of its latest attempt that left something. Gives its inode.

        Of that nothing but files: through a link that a publication left, a stage would write into an export, or to where none came to be.
        """
        with own(self._paths.output, staging.parent, make=True) as around:
            mine = around / staging.name
            earlier = sorted(
                (path for path in around.glob(f"{spec.name}.*") if path != mine), key=lambda path: int(path.suffix[1:] or 0)
            )  # fmt: skip
            remove_tree(mine)
            if spec.resumable and same and earlier:
                earlier.pop().rename(mine)
                for name in odd_below(mine):
                    (mine / name).unlink()
            for path in earlier:
                remove_tree(path)
            mine.mkdir(exist_ok=True)
            return os.lstat(mine).st_ino

    def finished(self) -> Iterator[tuple[Running, StageResult]]:
        """Take in what the attempts say; gives those that have ended. Each is forgotten once the next is asked for: its outcome is in the
        journal then, and where the journal could not take it, the next round tries again."""
        for running in list(self.running.values()):
            if (result := running.poll()) is not None:
                yield running, result
                del self.running[running.job.id, running.spec.name]
        starved = [running.cpu.got for running in self.here() if running.cpu is not None and running.cpu.starved]
        if starved:
            self.rivals.look(time.monotonic(), sum(starved))
        elif not any(running.starved_since for running in self.running.values()):
            self.rivals.forget()

    def unheard(self) -> list[str]:
        """Sentences on attempts of which nothing has been heard for long. May be asked from any thread."""
        moment, attempts = time.monotonic(), list(dict(self.running).values())
        silent = [(running, moment - since) for running in attempts if (since := running.unanswered) is not None]
        return [
            f"For {seconds:.0f} s the state of the stage {running.stage} of {running.job.id} has been unknown; the log says why."
            for running, seconds in silent if seconds > UNHEARD_SECONDS
        ]  # fmt: skip

    def starved(self) -> list[tuple[Running, float]]:
        """The attempts that others have kept from their CPU time for minutes, and for how many seconds. May be asked from any thread."""
        moment, attempts = time.monotonic(), list(dict(self.running).values())
        starved = [(running, moment - since) for running in attempts if (since := running.starved_since) is not None]
        return [(running, seconds) for running, seconds in starved if seconds >= STARVED_SECONDS and running.cpu is not None]

    def relieve(self, reserve: int) -> None:
        """End the largest attempt when the box's memory runs out, before the kernel chooses, perhaps the training."""
        if not self.running or time.monotonic() - self._relieved < PRESSURE_SECONDS:
            return
        available = memory()[1]
        largest = max(self.running.values(), key=lambda running: running.memory)
        if available >= reserve or not largest.memory:
            return
        self._relieved = time.monotonic()
        cause = (
            f"{units.size(available)} of the machine's memory were left (limits.memory_reserve is {units.size(reserve)}),"
            f" and this was the largest child with {units.size(largest.memory)}"
        )
        remedy = "nothing; it is tried again when there is enough memory (to start it sooner, free memory)"
        largest.stop(fault=Fault(code=FaultCode.MEMORY_PRESSURE, operation=f"run the stage {largest.stage}", cause=cause, remedy=remedy))

    def stop_heavy(self) -> None:
        """End the attempts whose window has closed; they go on in the next one."""
        for running in self.running.values():
            if running.spec.heavy:
                running.stop()

    def let_go(self, jobs: Collection[str]) -> None:
        """Leave alone what runs for these jobs on other machines: it goes on without this daemon, and the next one takes it over."""
        for key in [key for key, running in self.running.items() if key[0] in jobs and not self.runs_here(running.spec)]:
            del self.running[key]

    def stop(self, *, hurry: bool = False) -> None:
        """Ask all attempts to end at their next safe point, or (`hurry`) end them now."""
        for running in self.running.values():
            running.hurry() if hurry else running.stop()

    def _away(self, error: BaseException, operation: str) -> Fault | None:
        """What is away where an attempt could not be begun; None for every other error.

        Of our own files only the place that they lie in can be away: nobody but us brings them back.
        """
        if not isinstance(error, OSError) or not away.is_away(error) or not error.filename:
            return None
        return away.fault_at(error, (self._paths.state, self._paths.output), operation)


def _not_started(error: OSError | MemoryError, operation: str) -> Fault:
    if isinstance(error, OSError) and error.errno not in _NO_PROCESS:
        return from_oserror(error, operation).fault
    cause = error.strerror if isinstance(error, OSError) else "the daemon itself has no memory"
    remedy = "check what uses the machine's memory and processes, and the limits of the daemon's user; the work continues automatically"
    return Fault(code=FaultCode.NO_PROCESS, operation=operation, cause=cause or str(error), remedy=remedy)
