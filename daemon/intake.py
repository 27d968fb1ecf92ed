"""Takes a complete checkpoint in: selection, pin, identity, journal. The one door, for the watcher and `ckptd export`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from daemon.checkpoint import Fingerprint, Inspection, identify
from daemon.contract import CheckpointRef, digest_of
from daemon.durable import remove_tree
from daemon.errors import Fault
from daemon.finish import collect_orphans
from daemon.journal import Journal
from daemon.paths import Paths
from daemon.pin import make_pin
from daemon.settings import SelectSettings, Settings
from handlers.plan import plan

log = structlog.get_logger("intake")

INCOMING = ".incoming"


def digest_of_fingerprint(fingerprint: Fingerprint) -> str:
    """What the journal remembers of a directory's state."""
    return digest_of([list(row) for row in fingerprint])


def selected(inspection: Inspection, select: SelectSettings) -> bool:
    """Whether `[select]` wants this checkpoint."""
    if select.policy == "every":
        return inspection.step % select.every == 0
    if select.policy == "best":
        best = str(inspection.metadata.get("best_model_checkpoint") or "")
        return Path(best).name == inspection.path.name
    return True


def run_name(root: Path, checkpoint: Path) -> str:
    """The run's directory relative to the root; the root's own name where the root itself is the run."""
    relative = os.path.relpath(checkpoint.parent, root)
    return root.name if relative == "." else relative


@dataclass(frozen=True)
class Candidate:
    """A checkpoint on its way into the journal: its job's id, what it is, its pin, and the state it was seen in."""

    job: str
    reference: CheckpointRef
    pin: Path
    known: str
    fault: Fault | None = None


@dataclass(frozen=True)
class Intake:
    """Enters jobs into the journal."""

    settings: Settings
    journal: Journal
    paths: Paths

    def take(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        """Pin a complete checkpoint that `[select]` wants and enter its job; gives the job's id, None without a new job.

        Raises pin.Moved when the checkpoint changed meanwhile, OSError when it can't be pinned.
        """
        if not selected(inspection, self.settings.select):
            self.journal.remember(str(inspection.path), digest_of_fingerprint(fingerprint), "skipped")
            log.info("checkpoint skipped", path=str(inspection.path), policy=self.settings.select.policy)
            return None
        candidate = self.pin(root, run_name(root, inspection.path), inspection, fingerprint)
        if self.journal.job(candidate.job) is not None:
            self.drop(candidate)
            self.journal.remember(str(inspection.path), candidate.known, "known")
            return None
        return self.enter(candidate)

    def pin(self, root: Path, run: str, inspection: Inspection, fingerprint: Fingerprint) -> Candidate:
        """Snapshot a complete checkpoint and identify it by its content."""
        incoming = self.paths.pins / INCOMING
        make_pin(inspection.path, incoming, fingerprint)
        reference = _reference(root, run, inspection, identify(incoming))
        return Candidate(self.job_id(reference), reference, incoming, digest_of_fingerprint(fingerprint))

    def drop(self, candidate: Candidate) -> None:
        """The candidate is not entered: its pin goes."""
        remove_tree(candidate.pin)

    def take_damaged(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        """Enter a job that only reports: the trainer said it was done, and what is there can't be used."""
        candidate = self.damaged(root, run_name(root, inspection.path), inspection, fingerprint)
        assert candidate.fault is not None
        log.error(candidate.fault.sentence(), path=str(inspection.path), code=candidate.fault.code)
        return self.enter(candidate)

    def damaged(self, root: Path, run: str, inspection: Inspection, fingerprint: Fingerprint) -> Candidate:
        """The candidate of a checkpoint that can't be used: nothing is pinned, and its state stands for its content."""
        known = digest_of_fingerprint(fingerprint)
        reference = _reference(root, run, inspection, known)
        return Candidate(self.job_id(reference), reference, self.paths.pins / INCOMING, known, damaged(inspection))

    def enter(self, candidate: Candidate) -> str | None:
        """Commit the job; gives its id, None where the journal had it already."""
        reference, pin = candidate.reference, self.paths.pins / candidate.job
        if candidate.fault is None:
            remove_tree(pin)
            os.rename(candidate.pin, pin)
        supersede = self.settings.select.policy == "latest"
        new = self.journal.add_job(
            candidate.job, reference, self.settings.work, [spec.name for spec in plan(self.settings.variants)], pin=pin,
            target=self.target(reference), fingerprint=candidate.known, supersede=supersede, fault=candidate.fault,
        )  # fmt: skip
        if not new:
            return None
        log.info("checkpoint taken", job=candidate.job, run=reference.run, step=reference.step, path=reference.path,
                 layout=reference.layout, digest=reference.digest[:16])  # fmt: skip
        if supersede:
            collect_orphans(self.journal, self.paths)
        return candidate.job

    def job_id(self, reference: CheckpointRef) -> str:
        """Readable and the same for the same checkpoint with the same configuration."""
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", reference.run).strip("-.") or "run"
        return f"{slug[:60]}-{reference.step}-{reference.identity[:8]}{self.settings.work.digest[:4]}"

    def target(self, reference: CheckpointRef) -> Path:
        """The export's folder by `output.naming`."""
        name = self.settings.output.naming.format(
            run=reference.run, step=reference.step, identity=reference.identity[:12], date=datetime.now(UTC).strftime("%Y-%m-%d")
        )
        return self.paths.output / name


def _reference(root: Path, run: str, inspection: Inspection, digest: str) -> CheckpointRef:
    return CheckpointRef(
        root=str(root), run=run, step=inspection.step, path=str(inspection.path), layout=inspection.layout or "unknown", digest=digest,
        method=inspection.method or "unknown", base_name=inspection.base_name, base_revision=inspection.base_revision,
        metadata=inspection.metadata,
    )  # fmt: skip


def damaged(inspection: Inspection) -> Fault:
    """The fault of a checkpoint that can't be used as it is."""
    return Fault(
        code="checkpoint-damaged", operation="read the checkpoint", cause="; ".join(inspection.missing), path=str(inspection.path),
        remedy="save it again from the trainer, or copy it again in full; the job starts by itself when it is whole",
    )  # fmt: skip
