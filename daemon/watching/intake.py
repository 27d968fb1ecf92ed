"""Takes a complete checkpoint in: selection, pin, identity, journal. Used by both the watcher and `ckptd export`."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from daemon.checkpoints.additions import Added, Settling, pin_additions, unpinned
from daemon.checkpoints.files import Fingerprint, fingerprint
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.names import run_of
from daemon.checkpoints.pins import Moved, PinRules, identify, make_pin, pins_of, rewritten
from daemon.checkpoints.selection import best_step, choice_for
from daemon.config.paths import Paths
from daemon.config.run_overrides import Effective, effective
from daemon.config.settings import Settings
from daemon.contract.data_files import stamp
from daemon.contract.errors import Fault, Permanent
from daemon.contract.events import Event
from daemon.contract.export_layout import manifest_of
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import remove_tree
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.plan import stage_names
from daemon.contract.values import digest_of
from daemon.journal.entries import JobEntry, write_entry
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal
from daemon.journal.rewrites import OFTEN, REMEDY
from daemon.journal.rows import now
from daemon.system.episodes import Away
from daemon.watching.places import Places

log = structlog.get_logger("intake")

INCOMING = ".incoming"
HOUR = 3600.0


def digest_of_fingerprint(fingerprint: Fingerprint) -> str:
    """What the journal remembers of a directory's state."""
    return digest_of([list(row) for row in fingerprint])


def run_name(root: Path, checkpoint: Path) -> str:
    """The run's directory relative to the root; the root's own name where the root itself is the run."""
    relative = os.path.relpath(run_of(checkpoint), root)
    return root.name if relative == "." else relative


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


@dataclass(frozen=True)
class Intake:
    """Enters jobs into the journal."""

    settings: Settings
    journal: Journal
    paths: Paths
    incoming: str = INCOMING
    """Name below the pins under which a checkpoint is pinned before its identity is known. Each thread that takes them in has its own."""
    _said: set[str] = field(default_factory=set)
    _entering: threading.Lock = field(default_factory=threading.Lock)
    """Two threads must not be given one place."""
    tell: Callable[[Fault, bool], object] = lambda fault, over: None
    """Called with an adapter to add that is away as checkpoints begin to wait for it, and (True) as it is back."""
    _settling: Settling = field(default_factory=Settling)

    def __post_init__(self) -> None:
        if self._settling.gone is None and self.settings.merge.add:
            gone = Away(self.paths.away_additions, HOUR * self.settings.limits.away_hours)
            gone.tell = self.tell
            object.__setattr__(self, "_settling", Settling(gone))

    @property
    def pins(self) -> Path:
        """The folder of all pins."""
        return pins_of(self.settings.pin, self.paths)

    def of_thread(self, number: int) -> Intake:
        """The same, with a place of its own to pin for the thread of this number; 0 is the thread that watches."""
        return replace(self, incoming=f"{self.incoming}.{number}") if number else self

    def take(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        """Pin a complete checkpoint that `[select]` wants and enter its job; gives the job's id, None without a new job.

        Raises pin.Moved when the checkpoint changed meanwhile, Retryable or OSError when it can't be pinned now, or while an adapter that
        `[merge]` adds may still be written.
        """
        mine = self._effective(run_of(inspection.path))
        choice, later = choice_for(inspection, mine.settings.select)
        if not choice.wanted:
            self.journal.sightings.remember(str(inspection.path), digest_of_fingerprint(fingerprint), "skipped")
            log.info(
                "checkpoint skipped",
                event_id=Event.CHECKPOINT_SKIPPED,
                path=str(inspection.path),
                policy=mine.settings.select.policy,
                reason=choice.reason,
            )
            return None
        if best_step(later) == inspection.step:
            news: dict[str, Any] = {key: later[key] for key in ("best_model_checkpoint", "best_global_step", "best_metric") if key in later}
            inspection = replace(inspection, metadata={**inspection.metadata, **news})
        self._settling.check(self.settings.merge.add)
        candidate = self.pin(root, run_name(root, inspection.path), inspection, fingerprint, mine)
        if self._is_known(candidate):
            return None
        if candidate.fault is not None:
            log.error(candidate.fault.sentence(), event_id=Event.CHECKPOINT_REFUSED, path=str(inspection.path), code=candidate.fault.code)
        return self.enter(candidate)

    def reconsider(self, inspection: Inspection) -> Path | None:
        """The sibling that a complete checkpoint names as the best and that was skipped: it is to be looked at again."""
        if self._effective(run_of(inspection.path)).settings.select.policy != "best":
            return None
        step = best_step(inspection.metadata)
        sibling = inspection.path.with_name(f"checkpoint-{step}")
        if step is None or sibling == inspection.path or not self.journal.sightings.reconsider(str(sibling)):
            return None
        log.info(
            "a checkpoint that was skipped is the best now",
            event_id=Event.CHECKPOINT_RECONSIDERED,
            path=str(sibling),
            named_by=str(inspection.path),
        )
        return sibling

    def pin(
        self, root: Path, run: str, inspection: Inspection, fingerprint: Fingerprint, mine: Effective | None = None
    ) -> Candidate:  # fmt: skip
        """Snapshot a complete checkpoint, and what `[merge]` adds to it, and identify both by content. `mine`: the settings of its run,
        else the main ones. Where something can't be added, the candidate has a fault and no pin.
        """
        mine = mine or Effective(self.settings)
        incoming = self.pins / self.incoming
        rules = PinRules(int(self.settings.pin.copy_limit), int(self.settings.limits.disk_reserve))
        make_pin(inspection.path, incoming, fingerprint, rules, inspection.borrowed, top=root)
        digest = identify(incoming)
        if rewritten(incoming):
            remove_tree(incoming)
            raise Moved
        wanted, reserve, fault = self.settings.merge, int(self.settings.limits.disk_reserve), None
        try:
            added = pin_additions(wanted, inspection, self.settings.base, incoming, reserve)
        except Permanent as error:
            fault, added = error.fault, Added(unpinned(wanted.add))
            remove_tree(incoming)
        except BaseException:
            remove_tree(incoming)
            raise
        mixed = {"weight": wanted.weight, "additions": added.additions}
        reference = _reference(root, run, inspection, digest).model_copy(update=mixed)
        name = job_id(reference, mine.settings)
        warnings = (*added.warnings, *_left_out(inspection))
        return Candidate(name, reference, incoming, digest_of_fingerprint(fingerprint), mine, fault, warnings)

    @property
    def places(self) -> Places:
        """Gives exports their folders."""
        return Places(self.settings, self.journal, self.paths, self._lies_elsewhere)

    def drop(self, candidate: Candidate) -> None:
        """The candidate is not entered: its pin goes."""
        remove_tree(candidate.pin)

    def take_damaged(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        """Enter a job that only reports: the trainer said it was done, and what is there can't be used."""
        mine = self._effective(run_of(inspection.path))
        candidate = self.damaged(root, run_name(root, inspection.path), inspection, fingerprint, mine)
        assert candidate.fault is not None
        if self._is_known(candidate):
            return None
        log.error(candidate.fault.sentence(), event_id=Event.CHECKPOINT_REFUSED, path=str(inspection.path), code=candidate.fault.code)
        return self.enter(candidate)

    def damaged(
        self, root: Path, run: str, inspection: Inspection, fingerprint: Fingerprint, mine: Effective | None = None
    ) -> Candidate:  # fmt: skip
        """The candidate of a checkpoint that can't be used: nothing is pinned, and its state stands for its content."""
        mine = mine or Effective(self.settings)
        known = digest_of_fingerprint(fingerprint)
        reference = _reference(root, run, inspection, known)
        return Candidate(job_id(reference, mine.settings), reference, self.pins / self.incoming, known, mine, damaged(inspection))

    def enter(self, candidate: Candidate) -> str | None:
        """Commit the job; gives its id, None where the journal had it already."""
        warning = candidate.effective.warning
        warnings = (*((warning,) if warning else ()), *candidate.warnings)
        pin = self.pins / candidate.job
        if candidate.fault is None:
            remove_tree(pin)
            os.rename(candidate.pin, pin)
        with self._entering:
            return self._enter(candidate, pin, warnings)

    def _enter(self, candidate: Candidate, pin: Path, warnings: tuple[str, ...]) -> str | None:
        reference, settings = candidate.reference, candidate.effective.settings
        target = self.places.of(reference)
        latest = settings.select.policy == "latest"
        if candidate.fault is None:
            # Beside the pin it lets a lost journal be rebuilt even after rotation has taken the checkpoint away.
            write_entry(self.paths, JobEntry(
                job=candidate.job, checkpoint=reference, work=settings.work, pin=str(pin), target=str(target),
                fingerprint=candidate.known, created=now(), warnings=warnings, newest_first=latest,
            ))  # fmt: skip
        job = NewJob(
            candidate.job, reference, settings.work, stage_names(settings.work, reference.layout), pin, target, candidate.known,
            warnings=warnings,
        )  # fmt: skip
        stands = frozenset(one for one in self.journal.sightings.jobs_at(reference.path) if self._lies_elsewhere(one, reference.path))
        if not self.journal.jobs.add(job, supersede=latest, fault=candidate.fault, stands=stands):
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
        if candidate.fault is None:
            self._say_rewritten(reference)
        return candidate.job

    def _say_rewritten(self, reference: CheckpointRef) -> None:
        """Say that one export after the other of a directory gives way to its next content: once for every OFTEN of them."""
        count = self.journal.jobs.rewrites(reference.run, reference.path)
        if count and count % OFTEN == 0:
            log.warning(
                "a checkpoint is written again and again before its export ends",
                event_id=Event.CHECKPOINT_REWRITTEN,
                path=reference.path,
                count=count,
                remedy=REMEDY,
            )

    def _is_known(self, candidate: Candidate) -> bool:
        """Whether a job has this content already, here or where its directory was before it was moved; drops and remembers it then."""
        path = candidate.reference.path
        job = self.journal.jobs.get(candidate.job)
        if job is not None and job.state == "superseded" and not self.journal.sightings.places(job.id):
            # Its content was overwritten during the export, and now it is back.
            if job.untidy:
                self.drop(candidate)
                raise Moved
            self.journal.jobs.forget(job.id)
        elif job is not None:
            self.drop(candidate)
            self.journal.sightings.remember(path, candidate.known, "known", job.id)
            return True
        for name in self.journal.jobs.of_content(candidate.reference.step, candidate.reference.digest):
            places = self.journal.sightings.places(name)
            held = path in places or any(_holds(Path(place), known) for place, known in places.items())
            if not held and (places or self._has_lost_its_place(name)):
                self.drop(candidate)
                self.journal.sightings.moved(name, path, candidate.known)
                log.info("moved", event_id=Event.CHECKPOINT_MOVED, job=name, path=path, before=sorted(places))
                return True
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

    def _effective(self, run: Path) -> Effective:
        """The settings that count for a run; what is wrong with its own file is said once."""
        mine = effective(self.settings, run)
        if mine.warning and mine.warning not in self._said:
            self._said.add(mine.warning)
            log.warning(mine.warning, event_id=Event.RUN_CONFIG_INVALID, code=FaultCode.RUN_CONFIG_INVALID)
        return mine


def job_id(reference: CheckpointRef, settings: Settings) -> str:
    """Readable and the same for the same checkpoint with the same configuration and the same texts that it names. Raises OSError where
    these can't be looked at now."""
    texts = [stamp(value) for value in (settings.validate.prompts, settings.validate.data)]
    configured = digest_of([settings.work.digest, texts]) if any(texts) else settings.work.digest
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", reference.run).strip("-.") or "run"
    return f"{slug[:60]}-{reference.step}-{reference.identity[:8]}{configured[:4]}"


def _holds(checkpoint: Path, known: str) -> bool:
    """Whether a directory is still in the state that the journal knows."""
    try:
        return digest_of_fingerprint(fingerprint(checkpoint)) == known
    except OSError:
        return False


def _left_out(inspection: Inspection) -> list[str]:
    """What a report says of other adapters in folders of the checkpoint."""
    if not inspection.left_out:
        return []
    commands = " and ".join(f"`ckptd export {shlex.quote(str(inspection.path / name))}`" for name in inspection.left_out)
    folders = ", ".join(f"{name}/" for name in inspection.left_out)
    return [f"{folders} in the checkpoint: another adapter, which this export leaves out; run {commands}"]


def _reference(root: Path, run: str, inspection: Inspection, digest: str) -> CheckpointRef:
    return CheckpointRef(
        root=str(root), run=run, step=inspection.step, path=str(inspection.path), layout=inspection.layout or "unknown", digest=digest,
        method=inspection.method or "unknown", base_name=inspection.base_name, base_revision=inspection.base_revision,
        metadata=inspection.metadata, ending=inspection.ending,
    )  # fmt: skip


def damaged(inspection: Inspection, *, then: str = "the job starts automatically when it is complete") -> Fault:
    """The fault of a checkpoint that can't be used as it is. `then`: what follows when it is complete, as a clause."""
    return Fault(
        code=FaultCode.CHECKPOINT_DAMAGED, operation="read the checkpoint", cause="; ".join(inspection.missing), path=str(inspection.path),
        remedy=f"save it again from the trainer, or copy it again completely; {then}",
    )  # fmt: skip
