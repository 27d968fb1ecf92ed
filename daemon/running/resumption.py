"""What of a job need not be done again: finished stages are verified, kept outputs are found, a new configuration is adopted.

A part of the runner. Files are read in a thread of their own, since an output of many gigabytes takes a while; until the
answer is there, the job waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.disk import away
from daemon.contract.disk.answers import ask
from daemon.contract.disk.files import FileEntry
from daemon.contract.disk.own_folders import own
from daemon.contract.faults.events import Event
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import CHECK, spec_of, stage_names
from daemon.contract.jobs.verdicts import way_down_of
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, StageRow
from daemon.journal.states import ENDED_STAGE
from daemon.publishing.kept import OutputCache, is_whole
from daemon.publishing.lending import take_back
from daemon.running.rules.resume_keys import Sources, keys_of, sources_of
from daemon.system.logger import Logger
from daemon.system.processes.threads import Owner, ThreadDied

log = Logger("runner")

KEEP_SECONDS = 1.0
"""How long the last look at what an ended job was made of may take: the runner waits for it."""
SETTLED_SECONDS = 5.0
"""A base that was changed must stay as it is for so long before anything is made of it: copying one takes a while."""


@dataclass(frozen=True)
class Change:
    """Of what a job's finished stages were made of."""

    files: Sequence[str]
    """Names of the files of the base that are others; none where it is texts that have changed."""
    settled: bool
    """It has been as it is now for a while."""


class Rechecks:
    """Reads finished outputs again, one after the other, beside the runner."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._thread = Owner("recheck")
        self._answers: dict[Path, Future[bool]] = {}
        self._changed = changed

    def ask(self, folder: Path, files: Sequence[FileEntry]) -> bool | None:
        """Whether the output is whole; None until that is known: ask again. An answer is given once."""
        if folder not in self._answers:
            self._answers[folder] = self._thread.submit(is_whole, folder, tuple(files))
            self._answers[folder].add_done_callback(lambda _: self._changed())
        if not self._answers[folder].done():
            self._thread.see()
            return None
        with contextlib.suppress(ThreadDied):
            return self._answers.pop(folder).result()
        return None

    def close(self) -> None:
        """Wait for the file that is being read, drop the rest."""
        self._thread.close(drop=True)


class Resumption:
    """Decides, before a job goes on, which of its stages stay finished. `work_of`: its configuration as it is now, if known."""

    def __init__(
        self, journal: Journal, kept: OutputCache, staging: Path, work_of: Callable[[JobRow], Work | None], device: str,
        machine_of: Callable[[StageSpec], object], changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`staging`: where jobs have their folders of unpublished outputs; `machine_of`: which machine makes a stage's output."""
        self._journal, self._kept, self._staging, self._work_of, self._device = journal, kept, staging, work_of, device
        self._machine_of = machine_of
        self._rechecks = Rechecks(changed)
        self._ready: set[str] = set()
        self._known: dict[str, dict[str, bool]] = {}
        self._sources: dict[str, Sources] = {}
        """Job → the stamps of what its finished stages were made of."""
        self._changing: dict[str, tuple[Sources, float]] = {}
        """Job → the stamps when they were last found to be others, and since when (monotonic) they have been these."""

    def close(self) -> None:
        """End the reading."""
        self._rechecks.close()

    def forget(self, job: str) -> None:
        """The job has ended, or its configuration may have changed: look at it anew when it comes again."""
        self._ready.discard(job)
        for known in (self._known, self._sources, self._changing):
            known.pop(job, None)

    def adopt(self, job: JobRow) -> JobRow:
        """The job as it is to be done now. Raises OSError."""
        if job.id in self._ready:
            return job
        try:
            with own(self._staging.parent.parent, self._staging / job.id) as staging:
                take_back(staging)  # a publication that a full disk cut off may not have been able to
        except OSError as error:
            if not away.is_away(error):  # an output that is away is waited for before the next stage
                raise
        return self._adopt(job)

    def prepare(self, job: JobRow, sources: Sources | None) -> bool:
        """Decide what of a job that was adopted stays finished; False while its finished outputs are still being read. `sources`: as they
        are now; None where they can't be known, and whatever is whole stays."""
        if job.id in self._ready:
            return True
        stages = self._journal.stages.of(job.id)
        finished = {name: stage for name, stage in stages.items() if stage.state == "succeeded"}
        if not self._verified(job.id, finished):
            return False
        for name, whole in self._known.pop(job.id, {}).items():
            if not whole:
                log.warning(
                    "the output of a finished stage is no longer whole; it is made again",
                    event_id=Event.STAGE_REPEATED,
                    job=job.id,
                    stage=name,
                )
                self._journal.stages.reopen(job.id, name)
        if sources is not None:
            self._begin(job, sources)
            self._reopen_changed(job)
        self._ready.add(job.id)
        return True

    def begin_again(self, job: JobRow, sources: Sources) -> None:
        """Make the stages again that were made of other things than are there now, also those that failed of them."""
        self._begin(job, sources)
        self._reopen_changed(job, ENDED_STAGE)

    def _begin(self, job: JobRow, sources: Sources) -> None:
        """Remember what the job's stages are made of: seen before its keys are looked at, since what changes meanwhile is found later."""
        self._changing.pop(job.id, None)
        self._sources[job.id] = sources

    def known(self, job: str) -> Sources | None:
        """What a job's finished stages were made of; None where it has not been prepared."""
        return self._sources.get(job)

    def changed(self, job: JobRow, now: Sources) -> Change | None:
        """What has changed of the things that finished stages were made of, since the job was prepared; None where nothing has.

        A later stage would be made of other things than they, and its output would lie under a key that says otherwise.
        """
        known = self._sources.get(job.id)
        if known is None or known == now:
            self._changing.pop(job.id, None)
            return None
        before, since = self._changing.get(job.id, (None, 0.0))
        if before != now:
            since = time.monotonic()
            self._changing[job.id] = now, since
        names = sorted({str(row[0]) for row in (*known["base"], *now["base"]) if (row in known["base"]) != (row in now["base"])})
        return Change(names, time.monotonic() - since >= (SETTLED_SECONDS if names else 0.0))

    def reuse(self, job: JobRow, stage: str, key: str) -> bool | None:
        """Take an output with this key that an earlier job left: True when done, False without one, None while it is read."""
        output = self._kept.find(key)
        if output is None:
            return False
        folder, result = output
        whole = self._rechecks.ask(folder, result.files)
        if whole is None:
            return None
        if not whole:
            log.warning("a kept output is no longer whole; it is made again", event_id=Event.STAGE_REPEATED, job=job.id, stage=stage)
            self._kept.drop(key)
            return False
        self._journal.stages.reuse(job.id, stage, key, folder, result)
        log.info("stage reused", event_id=Event.STAGE_REUSED, stage=stage, key=key[:12])
        return True

    def end(self, job: JobRow, stages: Iterable[str]) -> bool:
        """Forget a job that has ended; False where what it was made of changed in the end: nobody knows of which its outputs were made."""
        try:
            same = self.changed(job, ask(f"sources {job.id}", lambda: sources_of(job, stages), KEEP_SECONDS)) is None
        except (OSError, ValueError):
            same = False
        self.forget(job.id)
        return same

    def take_steps_down(self, job: JobRow, stages: Mapping[str, StageRow]) -> bool:
        """Record the stages of the forms that now take the place of others, whose checks failed; True where there were any.

        The rule is `daemon.contract.jobs.fallbacks`'s. Once the report has begun nothing is added: what it says is what was decided.
        """
        report = stages.get("report")
        if report is not None and report.state != "waiting":
            return False
        down, checked = way_down_of(job.work, stages), _checked(stages)
        new = [step for step in down.steps if step.taken in down.added and step.taken not in checked]
        if not new:
            return False
        names = stage_names(job.work, job.checkpoint.layout, down.added)
        if not self._journal.jobs.reconfigure(job.id, job.work, list(dict.fromkeys([*names, *stages]))):
            return False
        for step in new:
            log.warning(
                "fallback taken", event_id=Event.STAGE_FALLBACK, stage=f"{CHECK}{step.wanted}", wanted=step.wanted, taken=step.taken,
                reason=step.reason,
            )  # fmt: skip
        return True

    def _adopt(self, job: JobRow) -> JobRow:
        """Let the job follow the present configuration and the present plan; what these leave alone stays finished."""
        work, stages = self._work_of(job) or job.work, self._journal.stages.of(job.id)
        checked = _checked(stages)
        added = [name for name in way_down_of(work, stages).added if name in checked]
        names = stage_names(work, job.checkpoint.layout, added)
        if work == job.work and names == list(stages):
            return job
        if self._journal.jobs.reconfigure(job.id, work, names):
            what = "configuration" if work != job.work else "plan"
            log.warning(
                f"the {what} has changed; the export goes on by the new one", event_id=Event.CONFIG_CHANGED, job=job.id, stages=names
            )
        return self._journal.jobs.get(job.id) or job

    def _verified(self, job: str, finished: dict[str, StageRow]) -> bool:
        """Ask about every finished output; whether all answers are there."""
        known = self._known.setdefault(job, {})
        for name, stage in finished.items():
            if name in known:
                continue
            if stage.folder is None or stage.result is None:
                known[name] = False
            elif (whole := self._rechecks.ask(stage.folder, stage.result.files)) is not None:
                known[name] = whole
        return known.keys() >= finished.keys()

    def _reopen_changed(self, job: JobRow, ended: Collection[str] = ("succeeded",)) -> None:
        """Stages that have `ended` so and whose key is another one now (a configuration, an upgrade, a changed base) are made again."""
        if not any(stage.key for stage in self._journal.stages.of(job.id).values()):
            return
        stages, sources = self._journal.stages.of(job.id), self._sources[job.id]
        keys = keys_of(job, stages, self._device, sources, self._machine_of)
        for name in list(stages):
            stage = stages[name]
            other = stage.key != keys[name] if stage.key else stage.state == "skipped" and _may_be_made(stages, name)
            if stage.state in ended and other:
                log.warning(
                    "what a finished stage was made of has changed; it is made again", event_id=Event.STAGE_REPEATED, job=job.id, stage=name
                )
                self._journal.stages.reopen(job.id, name)
                stages = self._journal.stages.of(job.id)
                keys = keys_of(job, stages, self._device, sources, self._machine_of)


def _may_be_made(stages: Mapping[str, StageRow], name: str) -> bool:
    """Whether nothing that a stage needs has failed."""
    return all(stages[need].state not in ("failed", "skipped") for need in spec_of(name).needs if need in stages)


def _checked(stages: Iterable[str]) -> set[str]:
    return {name.removeprefix(CHECK) for name in stages if name.startswith(CHECK)}
