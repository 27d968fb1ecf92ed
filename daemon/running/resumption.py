"""What of a job need not be done again: finished stages are verified, kept outputs are found, a new configuration is adopted.

A part of the runner. Files are read in a thread of their own, since an output of many gigabytes takes a while; until the
answer is there, the job waits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import structlog

from daemon.contract.errors import Fault, from_oserror
from daemon.contract.events import Event
from daemon.contract.files import FileEntry
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import stage_names
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.lending import take_back
from daemon.running.fallbacks import added_to
from daemon.running.output_cache import OutputCache, is_whole
from daemon.running.rules.resume_keys import keys_of
from daemon.system.threads import Owner, ThreadDied

log = structlog.get_logger("runner")


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
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`staging`: where jobs have their folders of unpublished outputs."""
        self._journal, self._kept, self._staging, self._work_of, self._device = journal, kept, staging, work_of, device
        self._rechecks = Rechecks(changed)
        self._ready: set[str] = set()
        self._known: dict[str, dict[str, bool]] = {}

    def close(self) -> None:
        """End the reading."""
        self._rechecks.close()

    def forget(self, job: str) -> None:
        """The job has ended, or its configuration may have changed: look at it anew when it comes again."""
        self._ready.discard(job)
        self._known.pop(job, None)

    def prepare(self, job: JobRow) -> JobRow | None:
        """The job as it is to be done now; None while its finished outputs are still being read. Raises OSError."""
        if job.id in self._ready:
            return job
        take_back(self._staging / job.id)  # a publication that a full disk cut off may not have been able to
        job = self._adopt(job)
        stages = self._journal.stages.of(job.id)
        finished = {name: stage for name, stage in stages.items() if stage.state == "succeeded"}
        if not self._verified(job.id, finished):
            return None
        for name, whole in self._known.pop(job.id, {}).items():
            if not whole:
                log.warning(
                    "the output of a finished stage is no longer whole; it is made again",
                    event_id=Event.STAGE_REPEATED,
                    job=job.id,
                    stage=name,
                )
                self._journal.stages.reopen(job.id, name)
        self._reopen_changed(job)
        self._ready.add(job.id)
        return job

    def reuse(self, job: JobRow, stage: str, key: str) -> bool | None:
        """Take an output with this key that an earlier job left: True when done, False without one, None while it is read."""
        found = self._kept.find(key)
        if found is None:
            return False
        folder, result = found
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

    def keep(self, job: JobRow, stages: dict[str, StageRow], budget: int) -> Fault | None:
        """Take over the outputs of a job that has ended, within the budget; one that can't be kept costs a later job its time alone.

        Gives what kept the latest of them from it.
        """
        refused: Fault | None = None
        for name, stage in stages.items():
            if name != "report" and stage.key and stage.folder and stage.result and stage.result.reusable and stage.folder.is_dir():
                try:
                    self._kept.keep(stage.key, stage.folder, stage.result)
                except OSError as error:
                    log.warning(
                        "an output could not be kept for later jobs", event_id=Event.KEPT_FAILED, job=job.id, stage=name, why=str(error)
                    )
                    refused = from_oserror(error, f"keep the output of {name}", str(stage.folder)).fault
        try:
            self.trim(budget)
        except OSError as error:
            log.warning(
                "kept outputs could not be trimmed; it is tried again after the next export",
                event_id=Event.KEPT_FAILED,
                job=job.id,
                why=str(error),
            )
        return refused

    def trim(self, budget: int) -> list[str]:
        """Remove kept outputs beyond the budget, but for those that running jobs read."""
        in_use = [
            stage.folder for job in self._journal.jobs.running() for stage in self._journal.stages.of(job.id).values() if stage.folder
        ]  # fmt: skip
        gone = self._kept.trim(budget, in_use)
        if gone:
            log.info("removed kept outputs", event_id=Event.KEPT_REMOVED, keys=[key[:12] for key in gone])
        return gone

    def _adopt(self, job: JobRow) -> JobRow:
        """Let the job follow the present configuration and the present plan; what these leave alone stays finished."""
        work, stages = self._work_of(job) or job.work, self._journal.stages.of(job.id)
        names = stage_names(work, job.checkpoint.layout, added_to(work, stages))
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

    def _reopen_changed(self, job: JobRow) -> None:
        """Finished stages whose key is another one now (a configuration, an upgrade, a changed base) are made again."""
        if not any(stage.key for stage in self._journal.stages.of(job.id).values()):
            return
        stages = self._journal.stages.of(job.id)
        keys = keys_of(job, stages, self._device)
        for name in list(stages):
            stage = stages[name]
            if stage.state == "succeeded" and stage.key and stage.key != keys[name]:
                log.warning(
                    "what a finished stage was made of has changed; it is made again", event_id=Event.STAGE_REPEATED, job=job.id, stage=name
                )
                self._journal.stages.reopen(job.id, name)
                stages = self._journal.stages.of(job.id)
                keys = keys_of(job, stages, self._device)
