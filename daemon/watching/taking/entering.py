"""Enters what was pinned into the journal as a job: unless its content is known already, and with a folder of its own for the export.

Used by `daemon.watching.taking.intake` for the watcher and by `ckptd export`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.checkpoints.files import digest_of_fingerprint, fingerprint
from daemon.checkpoints.parts import earlier_forms
from daemon.checkpoints.pinning.pins import Moved, pins_of
from daemon.config.notify import NotifySettings
from daemon.config.places.export_names import folded
from daemon.config.places.paths import Paths
from daemon.config.run_overrides import Effective
from daemon.config.settings import Settings
from daemon.contract.disk import failpoints
from daemon.contract.disk.answers import ask
from daemon.contract.disk.export_layout import manifest_of
from daemon.contract.disk.files import fsync_directory, remove_tree
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.plan import stage_names
from daemon.journal.entries import JobEntry, write_entry
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.rewrites import OFTEN, REMEDY
from daemon.journal.rows import JobRow, Notice, now
from daemon.system.logger import Logger
from daemon.system.processes.seats import SEATS
from daemon.watching.origins import training_of
from daemon.watching.taking.places import FAILED, Places, Takings, takings_of
from daemon.watching.taking.turns import Turns

log = Logger("intake")


@dataclass(frozen=True)
class Candidate:
    """A checkpoint on its way into the journal: its job's id, what it is, its pin, and the state it was seen in."""

    job: str
    reference: CheckpointRef
    pin: Path
    known: str
    effective: Effective
    fault: Fault | None = None
    warnings: tuple[str, ...] = ()
    """What its report says of how it was taken."""

    def drop(self) -> None:
        """It is not entered: its pin goes."""
        remove_tree(self.pin)


@dataclass(frozen=True)
class _Reading:
    """What the journal has of a candidate at one moment."""

    job: JobRow | None
    """The job with the candidate's id."""
    same: Sequence[str]
    """All jobs of this step and content, the newest first."""
    copies: Sequence[JobRow]
    """All jobs of this content below its root."""
    here: Sequence[str]
    """The jobs whose content its directory held when it was last decided upon."""
    takings: Takings


@dataclass(frozen=True)
class Entering:
    """Enters candidates. Used by every thread that takes checkpoints in.

    The order keeps a power cut from losing one: the pin's contents are durable (`make_pin`), then its name, then the entry, then the job's
    commit. After a cut there is a job with its whole pin, or no job, and the next scan takes the checkpoint again.
    """

    settings: Settings
    journal: Journal
    paths: Paths
    turns: Turns

    def enter_new(self, candidate: Candidate) -> str | None:
        """Commit the job of a candidate, or drop it where a job has its content already. Return the job's id, None without a new one.

        Raises Moved while what an earlier job of it left is cleared away.
        """
        with self.turns.holding(self._keys(candidate)) as turn:
            while True:
                turn.begin()
                reading = self._read(candidate)
                if self._is_known(candidate, reading) or self._is_another_form(candidate):
                    return None
                target = self._places().of(candidate.reference, reading.takings)
                if turn.has(self._folder(target)):
                    return self._enter(candidate, target, reading)

    def enter(self, candidate: Candidate) -> str | None:
        """Commit the job, whatever else has its content. Return its id, None where the journal had it already."""
        reading = self._read(candidate)
        return self._enter(candidate, self._places().of(candidate.reference, reading.takings), reading)

    def _read(self, candidate: Candidate) -> _Reading:
        reference, around = candidate.reference, self.journal.jobs.around(candidate.job, candidate.reference)
        content = [job for job in around.alike if job.checkpoint.digest == reference.digest]
        return _Reading(
            job=next((job for job in around.alike if job.id == candidate.job), None),
            same=[job.id for job in content if job.checkpoint.step == reference.step],
            copies=[job for job in content if job.checkpoint.root == reference.root],
            here=around.here,
            takings=takings_of(around.places),
        )

    def _keys(self, candidate: Candidate) -> frozenset[str]:
        """What no other thread may enter meanwhile: this content, and this run's name."""
        return frozenset({f"content {candidate.reference.digest}", f"run {folded(candidate.reference.run)}"})

    def _folder(self, target: Path) -> str:
        """What no other thread may enter either: exports in the same folder of the output."""
        return f"folder {folded(target.relative_to(self.paths.output).parts[0].removesuffix(FAILED))}"

    def _places(self) -> Places:
        return Places(self.settings, self.journal, self.paths, self._lies_elsewhere)

    def place_of(self, reference: CheckpointRef) -> Path:
        """Return the folder that an export would have, for a look; nothing is said."""
        return self._places().would_be(reference, takings_of(self.journal.jobs.places()))

    def _enter(self, candidate: Candidate, target: Path, reading: _Reading) -> str | None:
        reference, settings, jobs = candidate.reference, candidate.effective.settings, self.journal.jobs
        stands = frozenset(job for job in reading.here if self._lies_elsewhere(job, reference.path))
        warning = candidate.effective.warning
        warnings = (*((warning,) if warning else ()), *candidate.warnings)
        pin = pins_of(self.settings.pin, self.paths) / candidate.job
        latest = settings.select.policy == "latest"
        if candidate.fault is None:
            remove_tree(pin)
            os.rename(candidate.pin, pin)
            with SEATS.left():
                fsync_directory(pin.parent)
                failpoints.point("pin.named")
                # Beside the pin it lets a lost journal be rebuilt even after rotation has taken the checkpoint away.
                write_entry(self.paths, JobEntry(
                    job=candidate.job, checkpoint=reference, work=settings.work, pin=str(pin), target=str(target),
                    fingerprint=candidate.known, created=now(), warnings=warnings, newest_first=latest,
                ))  # fmt: skip
                failpoints.point("entry.written")
        job = NewJob(
            candidate.job, reference, settings.work, stage_names(settings.work, reference.layout), pin, target, candidate.known,
            warnings=warnings, notice=_notice_of(candidate, self.settings.notify),
        )  # fmt: skip
        if candidate.fault is not None:
            log.error(candidate.fault.sentence(), event_id=Event.CHECKPOINT_REFUSED, path=reference.path, code=candidate.fault.code)
        if not jobs.add(job, supersede=latest, fault=candidate.fault, stands=stands):
            return None
        log.info(
            "checkpoint taken",
            event_id=Event.CHECKPOINT_TAKEN,
            job=candidate.job,
            run=reference.run,
            step=reference.step,
            path=reference.path,
            layout=reference.layout,
            digest=reference.digest[:16],
        )
        before = candidate.fault is None and (reading.here or reference.run in reading.takings.gave_way)
        count = jobs.rewrites(reference.run, reference.path) if before else 0
        if count and count % OFTEN == 0:  # one export after the other gives way to the directory's next content
            log.warning(
                "a checkpoint is written again and again before its export ends",
                event_id=Event.CHECKPOINT_REWRITTEN,
                path=reference.path,
                count=count,
                remedy=REMEDY,
            )
        return candidate.job

    def _is_known(self, candidate: Candidate, known: _Reading) -> bool:
        """Whether a job has this content already, here or where its directory was before it was moved; drops and remembers it then."""
        path, job = candidate.reference.path, known.job
        if job is not None and job.state == "superseded" and not self.journal.sightings.places(job.id):
            # Its content was overwritten during the export, and now it is back.
            if job.untidy:
                candidate.drop()
                raise Moved
            self.journal.jobs.forget(job.id)
        elif job is not None:
            candidate.drop()
            self.journal.sightings.remember(path, candidate.known, "known", job.id)
            return True
        for name in known.same:
            if name == candidate.job:
                continue
            places = self.journal.sightings.places(name)
            if places.get(path) == candidate.known:  # looked at again, with the content and the state that it had
                candidate.drop()
                self.journal.sightings.remember(path, candidate.known, "known", name)
                return True
            held = path in places or any(_holds(Path(place), state) for place, state in places.items())
            if not held and (places or self._has_lost_its_place(name)):
                candidate.drop()
                self.journal.sightings.moved(name, path, candidate.known)
                log.info("moved", event_id=Event.CHECKPOINT_MOVED, job=name, path=path, before=sorted(places))
                return True
        return self._is_copy(candidate, known.copies)

    def _is_copy(self, candidate: Candidate, copies: Sequence[JobRow]) -> bool:
        """Whether a checkpoint of the same training has this content, and one of them has no number: people save the last one again under
        names of their own. Drops and remembers it then."""
        reference = candidate.reference
        for job in copies:
            other = job.checkpoint
            if (
                job.state == "superseded"
                or other.mixture != reference.mixture
                or not (other.step == reference.step or other.ending or reference.ending)
                or other.path == reference.path
                or training_of(Path(other.path)) != training_of(Path(reference.path))
            ):
                continue
            candidate.drop()
            self.journal.sightings.remember(reference.path, candidate.known, "known", job.id)
            log.info("a copy", event_id=Event.CHECKPOINT_COPY, job=job.id, path=reference.path, of=other.path)
            return True
        return False

    def _is_another_form(self, candidate: Candidate) -> bool:
        """Whether the same step has been exported in the form that its trainer wrote before this one: drops and remembers it then.

        An export of that form which has not ended gives way to this one, which needs no other files; one that failed stays what it is.
        """
        reference = candidate.reference
        for path in earlier_forms(Path(reference.path)):
            for name in self.journal.sightings.jobs_at(str(path)):
                job = self.journal.jobs.get(name)
                if job is None or job.checkpoint.step != reference.step or job.checkpoint.mixture != reference.mixture:
                    continue
                if job.state in ("succeeded", "partial"):
                    candidate.drop()
                    self.journal.sightings.remember(reference.path, candidate.known, "known", name)
                    log.info("a copy", event_id=Event.CHECKPOINT_COPY, job=name, path=reference.path, of=job.checkpoint.path)
                    return True
                if job.state in ("pending", "running"):
                    self.journal.jobs.supersede(name, f"superseded by {candidate.job}")
        return False

    def _lies_elsewhere(self, job: str, path: str) -> bool:
        """Whether a job's content lies in another directory than `path` too, as where a run was copied or brought back."""
        places = self.journal.sightings.places(job)
        return any(place != path and _holds(Path(place), known) for place, known in places.items())

    def _has_lost_its_place(self, name: str) -> bool:
        """Whether the directory of a job is another job's content by now, as when two runs swap their names, and what it made still counts.

        An export that another one has replaced does not: what it was made of is exported again where it comes back.
        """
        job = self.journal.jobs.get(name)
        if job is None or job.state == "superseded" or self.journal.sightings.fingerprint(job.checkpoint.path) is None:
            return False
        return job.state not in ("succeeded", "partial") or manifest_of(job.target).get("export_id") == name


def _notice_of(candidate: Candidate, notify: NotifySettings) -> Notice | None:
    """What is told of a checkpoint that was taken, where anybody wants to know."""
    reference = candidate.reference
    if candidate.fault is not None or not notify.wants("found"):
        return None
    title = f"{reference.run} {reference.label}: checkpoint taken"
    return Notice("found", title, f"{reference.path}\nIts export is {candidate.job}.", {"run": reference.run, "step": reference.step})


def _holds(checkpoint: Path, known: str) -> bool:
    """Whether a directory is still in the state that the journal knows; where its file system does not answer it may be."""
    try:
        return ask(f"checkpoint {checkpoint}", lambda: digest_of_fingerprint(fingerprint(checkpoint))) == known
    except TimeoutError:
        return True
    except OSError:
        return False
