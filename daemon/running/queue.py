"""The jobs that wait for their turn: which one starts next, whether its base is there, and what of it is refused at its start.

A part of the runner, used by its thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import structlog

from daemon.checkpoints.models.base_models import config_of
from daemon.config.sources import as_asked
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.jobs.plan import effective_variants, spec_of
from daemon.contract.values import Json
from daemon.journal.rows import JobRow
from daemon.running.parts import Parts
from daemon.running.rules.ready import next_lane
from daemon.running.rules.suitable import unsuited, useless
from daemon.running.sources.gate import FOR_SOURCES
from daemon.system.logger import Logger

log = Logger("runner")

NEW_LOOKS = 20
"""Jobs that wait for their turn and whose base is looked for, in one round."""
SPARE_JOBS = 3
"""Jobs beyond `limits.jobs` that may be started while others wait for memory, a retry or a window."""


class Queue:
    """Pending jobs."""

    def __init__(self, parts: Parts, refuse_early: Callable[[JobRow], bool]) -> None:
        """`refuse_early` ends a job at its start, where it can't be published; says whether it did."""
        self._parts, self._refuse_early = parts, refuse_early
        self._looked = 0
        """Up to where in the journal the bases of pending jobs were looked for."""
        self._unsearched: set[str] = set()
        """Pending jobs whose base is still to be looked for."""

    def search_again(self) -> None:
        """Look again for what jobs wait for, since the configuration is another one."""
        self._unsearched |= {job for job, waiting in self._parts.waits.of.items() if waiting.fault.code in FOR_SOURCES}

    def next(self, jobs: list[JobRow], tried: set[str]) -> JobRow | None:
        """Return the pending job to start now, if there is room for another beside the running `jobs`: none of those `tried` in this round,
        and none that waits."""
        journal, waits, limit = self._parts.journal, self._parts.waits, self._parts.settings.jobs_at_once
        awake = [job for job in jobs if not job.paused]
        busy = [job for job in awake if not (job.id in waits.of and waits.of[job.id].is_long)]
        if len(busy) >= limit or max(len(awake), len(tried)) >= limit + SPARE_JOBS:
            return None
        but = tried | {job for job in waits.of if not waits.may_move(job)}
        preferred = journal.jobs.preferred(but)
        lane = None if preferred else next_lane(journal.jobs.lanes(but))
        return preferred or (journal.jobs.first_of(lane, but) if lane else None)

    def look_at_new(self) -> None:
        """Find out at once whether the base of a job that waits for its turn is there, so that it is said before that has come."""
        journal, waits = self._parts.journal, self._parts.waits
        entered, self._looked = journal.jobs.pending_after(self._looked, NEW_LOOKS)
        self._unsearched |= {*entered}
        due = [job for job, waiting in waits.of.items() if waiting.fault.code in FOR_SOURCES and waits.may_move(job)]
        due.sort(key=lambda job: waits.of[job].until)
        for job in [*dict.fromkeys([*sorted(self._unsearched), *due])][:NEW_LOOKS]:
            row = journal.jobs.get(job)
            if row is not None and row.state == "pending":
                with structlog.contextvars.bound_contextvars(job=job, run=row.checkpoint.run, step=row.checkpoint.step):
                    seen = self._parts.gate.find_base(row)
                if seen is not None:
                    waits.end(job)
                elif job not in waits:
                    continue  # its file system has not answered yet
            self._unsearched.discard(job)

    def start(self, job: JobRow) -> JobRow | None:
        """pending → running; None where it waits for its base, or was superseded meanwhile.

        A base that is damaged fails the first stage, as does one that was waited for long enough; a model that variants can't be made of
        fails these. The report says so.
        """
        parts, journal = self._parts, self._parts.journal
        seen = parts.gate.find_base(job)
        if seen is None:
            return None
        folder, fault = seen.base, seen.fault
        if not journal.jobs.start(job.id, folder):
            return None
        if self._refuse_early(job):
            return None
        log.info("export started", event_id=Event.EXPORT_STARTED, base=str(folder) if folder else None)
        stages = journal.stages.of(job.id)
        waiting = [stage.name for stage in stages.values() if stage.state == "waiting"]
        first = next(iter(stages))
        if fault:
            self._fail({first: fault} if first in waiting else {}, job)
        else:
            self._refuse(job, waiting, config_of(folder or job.pin))
        parts.changed()
        return journal.jobs.get(job.id)

    def _refuse(self, job: JobRow, waiting: Sequence[str], config: Json) -> None:
        """Fail the waiting stages that can't be made of the model; where none of the variants can, there is nothing to do but report."""
        asked = effective_variants(job.work.export.variants, job.work.export.quantization)
        faults = unsuited(map(spec_of, waiting), config, job.work, asked)
        refused = {name: fault.model_copy(update={"remedy": as_asked(fault.remedy)}) for name, fault in faults.items()}
        self._fail(refused, job)
        if refused and refused.keys() >= {*asked}:
            for name in waiting:
                if name != "report" and name not in refused:
                    self._parts.journal.stages.end(job.id, name, "skipped", useless(name))

    def _fail(self, faults: Mapping[str, Fault], job: JobRow) -> None:
        """Fail stages of a job before a child makes sense."""
        said = set[str]()
        for name, fault in faults.items():
            if fault.sentence() not in said:  # several stages may have the same
                log.error(fault.sentence(), event_id=Event.EXPORT_FAULT, stage=name, code=fault.code)
            said.add(fault.sentence())
            self._parts.journal.stages.end(job.id, name, "failed", fault)
