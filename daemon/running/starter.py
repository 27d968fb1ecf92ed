"""Starts a ready stage, or says what it waits for: what it needs, kept outputs, its window, threads, memory, disk.

A part of the runner, used by its thread alone.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from daemon.checkpoints.models.base_models import Bases
from daemon.checkpoints.models.layer_sizes import layers_of
from daemon.config.places.paths import Paths
from daemon.config.settings import Settings
from daemon.config.windows import Windows
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import ModelSize, StageSpec
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.contract.jobs.plan import find_spec, spec_of
from daemon.contract.jobs.points import RunFigures
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId, JobRow, StageRow
from daemon.publishing.access import access_of
from daemon.publishing.kept import OutputCache
from daemon.publishing.links import links_from_inside
from daemon.publishing.run_figures import run_figures
from daemon.running.attempts.children import Children, Grant
from daemon.running.attempts.job_file import ReadyStage
from daemon.running.attempts.outcomes import Outcomes
from daemon.running.resumption import Change, Resumption
from daemon.running.rules.admission import WAIT_SECONDS, Admission, Reserved, admit
from daemon.running.rules.estimates import Estimate, by_layers, estimate, without_twin
from daemon.running.rules.ready import (
    base_changing,
    because_of,
    loading,
    ready_stages,
    retrying,
    verifying,
    waiting_for_turn,
    waiting_to_time,
)  # fmt: skip
from daemon.running.rules.resume_keys import Sources, keys_of
from daemon.running.sources.gate import FOR_SOURCES, Gate
from daemon.running.sources.installing import Installing
from daemon.running.sources.outside import Seen
from daemon.running.waits import Waits
from daemon.system import box
from daemon.system.logger import Logger
from daemon.toolchains.registry import Toolchains

log = Logger("runner")

ALONE_LOOK_SECONDS = 1.0
ALONE_SECONDS = 300.0
"""How long nothing else is started for the sake of a stage that measures time; then it runs beside what still runs."""
LOADING_LOOK_SECONDS = 0.1
SETTLING_LOOK_SECONDS = 1.0
"""Between looks at a base that was changed."""
INSTALL_LOOK_SECONDS = 1.0
"""Between looks at a toolchain that is being installed."""
WINDOW_SECONDS = 15.0
"""Between looks at the clock while a window is closed."""


def sized_by(job: JobRow, spec: StageSpec) -> Path:
    """The folder whose weights say what a stage of the job needs: a full fine-tune is its own base."""
    return job.base if job.base and job.checkpoint.method != "full" and not spec.of_checkpoint else job.pin


class Starter:
    """Moves the stages of running jobs, by one configuration."""

    def __init__(
        self, settings: Settings, journal: Journal, paths: Paths, children: Children, waits: Waits, resumption: Resumption,
        kept: OutputCache, bases: Bases, installing: Installing, gate: Gate, outcomes: Outcomes,
    ) -> None:  # fmt: skip
        self._settings, self._journal, self._paths = settings, journal, paths
        self._children, self._waits, self._resumption, self._bases = children, waits, resumption, bases
        self._toolchains, self._installing, self._gate = Toolchains(settings.state_directory), installing, gate
        self._kept, self._outcomes = kept, outcomes
        self.windows = Windows(settings.schedule.heavy, settings.schedule.timezone)

    def move(self, job: JobRow, stages: dict[str, StageRow], seen: Seen, *, may_start: bool) -> bool:
        """Do what can be done about a job's ready stages; True where one ended without a child, so that others may be ready.

        `seen`: what they read from outside.
        """
        lost = [name for name, row in stages.items() if row.state == "running" and (job.id, name) not in self._children.running]
        for name in lost:  # claimed, and then neither started nor settled, since the disk was full in between
            attempt = self._journal.attempts.get(AttemptId(job.id, name, stages[name].attempts))
            self._outcomes.settle(attempt, stages[name], StageResult(outcome=Outcome.INTERRUPTED))
        ready = ready_stages(stages)
        # Only what could start now waits to be alone: not what is to be tried again later, nor what builds on a stage that is made again.
        self._waits.forget_alone(job.id, but={spec.name for spec in ready if stages[spec.name].due(time.time())} if may_start else ())
        sources = seen.sources if seen.sources is not None else {"base": []}
        keys = functools.cache(lambda: keys_of(job, stages, self._settings.limits.device, sources, self._children.machine_of))
        # One answer for all of them: those after the first would start on the rows of before its outputs were given up.
        change = functools.cache(lambda: None if seen.sources is None else self._resumption.changed(job, seen.sources))
        moved = [self._step(job, spec, stages, seen, change, keys, len(ready), may_start) for spec in ready]
        return bool(lost) or any(moved)

    def _step(
        self, job: JobRow, spec: StageSpec, stages: dict[str, StageRow], seen: Seen, change: Callable[[], Change | None],
        keys: Callable[[], dict[str, str]], ready: int, may_start: bool,
    ) -> bool:  # fmt: skip
        broken = [need for need in spec.needs if need in stages and stages[need].state in ("failed", "skipped")]
        if broken:
            self._journal.stages.end(job.id, spec.name, "skipped", because_of(broken[0], stages[broken[0]], spec))
            return True
        if not may_start:
            return False
        if seen.fault is not None and spec.name != "report":
            self._fail(job, spec, seen.fault)
            return True
        if not stages[spec.name].due(time.time()):
            why = stages[spec.name].fault or retrying(spec)
            self._waits.add(job.id, why, 1.0, said=why.code in FOR_SOURCES)
            return False
        if (other := change()) is not None and seen.sources is not None:
            return self._begin_again(job, other, seen.sources)
        key = keys()[spec.name]
        reused = self._resumption.reuse(job, spec.name, key) if spec.name != "report" else False
        if reused is None:
            self._waits.add(job.id, verifying(), 0.0)
        if reused is not False:
            return bool(reused)
        return self._admit_and_start(ReadyStage(job, spec, stages, key), ready)

    def _fail(self, job: JobRow, spec: StageSpec, fault: Fault) -> None:
        """A stage fails before a child makes sense."""
        log.error(fault.sentence(), event_id=Event.EXPORT_FAULT, stage=spec.name, code=fault.code)
        self._journal.stages.end(job.id, spec.name, "failed", fault)

    def _begin_again(self, job: JobRow, change: Change, sources: Sources) -> bool:
        """Make again what was made of a base or of texts that are others now; first what runs ends, and the base must have settled."""
        attempts = self._children.of(job.id)
        for running in attempts:
            running.stop()
        if attempts or not change.settled:
            self._waits.add(job.id, base_changing(job.base, change.files) if change.files else verifying(), SETTLING_LOOK_SECONDS)
            return False
        self._resumption.begin_again(job, sources)
        self._waits.end(job.id)
        return True

    def _admit_and_start(self, stage: ReadyStage, ready: int) -> bool:
        """Start the child of one of `ready` stages, wait, or (True: the job can move on at once) fail the stage for good."""
        job, spec = stage.job, stage.spec
        known, lacking = self._gate.toolchain(job, spec, self._toolchains, self._paths.cache)
        if not known:
            return False
        if (
            lacking
            and lacking.code == FaultCode.TOOLCHAIN_MISSING
            and self._settings.toolchains.auto_install
            and spec.toolchain in self._toolchains.known
        ):
            lacking = self._installing.want(spec.toolchain, spec.name, self._settings)
        if lacking and lacking.code == FaultCode.TOOLCHAIN_COMING:
            self._waits.add(job.id, lacking, INSTALL_LOOK_SECONDS)
            return False
        if lacking:
            self._fail(job, spec, lacking)
            return True
        moment = datetime.now(UTC)
        if spec.heavy and not self.windows.is_open(moment):
            self._waits.add(job.id, self.windows.closed_fault(spec.name, moment), WINDOW_SECONDS)
            return False
        threads = self._threads(job, spec, ready)
        if threads == 0:
            return False
        size = self._bases.size(sized_by(job, spec))
        need = self._way(job, spec, size, estimate(spec, size, self._journal.attempts.measurements(spec.name), job.work.merge.dtype))
        admission = self._admission(job, spec, need, size)
        if admission.fault and admission.never:
            self._fail(job, spec, admission.fault)
            return True
        if admission.fault:
            self._waits.add(job.id, admission.fault, WAIT_SECONDS, need.memory, admission.room)
            return False
        if not self._gate.offer(self._toolchains, self._paths.cache) and spec.toolchain:
            return False
        limits = self._settings.limits
        grant = Grant(threads, size, need, self._access(job, spec), self._run(job, spec), self._settings.report.spoken)
        if self._children.getting_ready(stage, grant, limits):
            self._waits.add(job.id, loading(spec), LOADING_LOOK_SECONDS)
            return False
        absent = self._gate.place_away()
        fault, claimed = (absent, None) if absent is not None else self._children.start(stage, grant, limits)
        self._waits.alone.pop((job.id, spec.name), None)  # another attempt has to be as patient
        self._waits.refused(fault)
        if fault and not claimed:
            self._gate.refused(job, fault)  # since when, is known of the tries before
            return False
        self._waits.end(job.id)
        if fault and claimed:
            self._outcomes.settle(claimed, stage.row, StageResult(outcome=Outcome.RETRYABLE, fault=fault))
        return False

    def _way(self, job: JobRow, spec: StageSpec, size: ModelSize, whole: Estimate) -> Estimate:
        """What a stage needs in the way in which it has to run: whole where it ever may have so much memory, else layer by layer, or
        without what can be left out."""
        allowed = int(box.memory()[0] * self._settings.limits.memory_fraction)
        if whole.memory <= allowed or not self._children.runs_here(spec):
            return whole
        if not spec.layerwise:
            return without_twin(spec, whole, size)
        sizes = layers_of(sized_by(job, spec), job.checkpoint.method)
        merged = spec.name == "merged" or spec.artifact
        adapter = job.pin if job.checkpoint.method != "full" and not merged else None
        if isinstance(sizes, str):
            return by_layers(spec, whole, allowed, sizes)
        options = job.work.validation
        needed = sizes.memory(adapter, options.new_tokens, spec.layerwise, long=bool(spec.memory_long and options.long_tokens))
        return by_layers(spec, whole, allowed, needed)

    def _access(self, job: JobRow, spec: StageSpec) -> str | None:
        return access_of(job, self._settings.output).why if spec.name == "report" else None

    def _run(self, job: JobRow, spec: StageSpec) -> RunFigures | None:
        if spec.name != "report":
            return None
        select = self._settings.select
        return run_figures(self._journal, job, select.best_variant, select.best_task).model_copy(update=links_from_inside(job))

    def _threads(self, job: JobRow, spec: StageSpec, ready: int) -> int:
        """Threads for one more child; 0 where there is no room for it beside what runs."""
        limits, at_work, others = self._settings.limits, self._children.jobs(), len(self._children.of(job.id))
        if not self._has_turn(job.id):
            self._waits.add(job.id, waiting_for_turn(spec, "jobs", at_work), 0.0)
            return 0
        if not self._may_share(job, spec):
            self._waits.add(job.id, waiting_to_time(spec), ALONE_LOOK_SECONDS)
            return 0
        if others >= limits.stages:
            return 0
        share = limits.effective_threads
        if self._children.runs_here(spec):
            free = share - self._children.threads()
            if free < 1:
                self._waits.add(job.id, waiting_for_turn(spec, "threads", at_work), 0.0)
                return 0
            # Each of the jobs that may run at once has its part, also before it comes: an attempt keeps its threads for hours.
            mine = min(free, max(1, share // limits.jobs) - self._children.threads(job.id))
            share = max(1, mine // min(ready, limits.stages - others))
        return min(spec.threads, share) if spec.threads else share

    def _has_turn(self, job: str) -> bool:
        """Whether `limits.jobs`, or `cluster.jobs`, allows the job to have children."""
        at_work = self._children.jobs()
        return job in at_work or len(at_work) < self._settings.jobs_at_once

    def let_others_go(self, going: Collection[str]) -> None:
        """Hold nothing back for jobs that are not `going`, or have no turn: what waits to run alone could not start anyway."""
        for job in {job for job, _ in self._waits.alone if job not in going or not self._has_turn(job)}:
            self._waits.forget_alone(job)

    def _may_share(self, job: JobRow, spec: StageSpec) -> bool:
        """Whether a start disturbs nothing that measures time: neither what runs, nor what waits until nothing else of ours does."""
        if not self._children.runs_here(spec):
            return True
        attempts = self._children.here()
        if any(running.spec.alone for running in attempts):
            return False
        waiting = (job.id, spec.name)
        if not spec.alone:
            return not spec.heavy or not any(
                time.monotonic() - since < ALONE_SECONDS for key, since in self._waits.alone.items() if key != waiting
            )
        if not attempts:
            self._waits.alone.pop(waiting, None)
            return True
        return time.monotonic() - self._waits.alone.setdefault(waiting, time.monotonic()) > ALONE_SECONDS

    def _admission(self, job: JobRow, spec: StageSpec, need: Estimate, size: ModelSize) -> Admission:
        """What keeps a stage from starting. Kept outputs go before anything waits for disk."""
        limits, promised = self._settings.limits, self._children.reserved()
        need = self._of_this_box(spec, need)
        reserved = Reserved(promised.memory + (self._waits.held_for_others(job.id) if need.memory else 0), promised.disk)

        def ask() -> Admission:
            return admit(spec, need, limits, self._paths, reserved, lambda allowed: self._that_fit(job, size, allowed))

        answer = ask()
        if answer.fault and answer.fault.code == FaultCode.DISK_NOW and self._kept.trim(0, self._journal.jobs.outputs_in_use()):
            answer = ask()
        return answer

    def _that_fit(self, job: JobRow, size: ModelSize, allowed: int) -> list[str]:
        """The variants asked for whose stages all fit into `allowed` bytes of memory."""

        def fits(name: str) -> bool:
            spec = spec_of(name)
            need = self._of_this_box(spec, estimate(spec, size, self._journal.attempts.measurements(name))).memory
            return need <= allowed and all(fits(other) for other in spec.needs)

        return [name for name in job.work.export.variants if find_spec(name) is not None and fits(name)]

    def _of_this_box(self, spec: StageSpec, need: Estimate) -> Estimate:
        """What of a need this box must have: no memory where the stage runs elsewhere."""
        return need if self._children.runs_here(spec) else replace(need, memory=0)
