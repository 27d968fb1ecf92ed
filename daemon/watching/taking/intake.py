"""Takes a complete checkpoint in: selection, pin, identity, journal. Used by both the watcher and `ckptd export`."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daemon.checkpoints.files import Fingerprint, digest_of_fingerprint, fingerprint_and_touch
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.names import run_of
from daemon.checkpoints.pinning.additions import Added, Settling, pin_additions, unpinned
from daemon.checkpoints.pinning.pins import Moved, PinRules, identify, make_pin, pins_of, rewritten
from daemon.checkpoints.selection import best_step, choice_for
from daemon.config.places.paths import Paths
from daemon.config.run_overrides import Effective, effective
from daemon.config.settings import Settings
from daemon.contract.disk.data_files import stamp
from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import Fault, Permanent
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.values import digest_of
from daemon.journal.following import WRITTEN
from daemon.journal.journal import Journal
from daemon.system.episodes import Away
from daemon.system.logger import Logger
from daemon.system.processes.seats import SEATS
from daemon.watching.taking.entering import Candidate, Entering
from daemon.watching.taking.turns import Turns

log = Logger("intake")

INCOMING = ".incoming"
HOUR = 3600.0


def run_name(root: Path, checkpoint: Path) -> str:
    """The run's directory relative to the root; the root's own name where the root itself is the run."""
    relative = os.path.relpath(run_of(checkpoint), root)
    return root.name if relative == "." else relative


@dataclass(frozen=True)
class Intake:
    """Enters jobs into the journal."""

    settings: Settings
    journal: Journal
    paths: Paths
    outer: Mapping[Path, Path] = field(default_factory=dict)
    """Link that is watched as a root → the root below which it lies, by which runs are named."""
    incoming: str = INCOMING
    """Name below the pins under which a checkpoint is pinned before its identity is known. Each thread that takes them in has its own."""
    _said: set[str] = field(default_factory=set)
    _turns: Turns = field(default_factory=Turns)
    tell: Callable[[Fault, bool], object] = lambda fault, over: None
    """Called with an adapter to add that is away as checkpoints begin to wait for it, and (True) as it is back."""
    _settling: Settling = field(default_factory=Settling)

    entering: Entering = field(init=False)
    """Enters what was pinned."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entering", Entering(self.settings, self.journal, self.paths, self._turns))
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
        if self.settings.merge.add:
            self._settling.check(self.settings.merge.add)
        root = self.outer.get(root, root)
        candidate = self.pin(root, run_name(root, inspection.path), inspection, fingerprint, mine)
        return self.entering.enter_new(candidate)

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
        written = _written(inspection.path)
        rules = PinRules(int(self.settings.pin.copy_limit), int(self.settings.limits.disk_reserve))
        make_pin(inspection.path, incoming, fingerprint, rules, inspection.borrowed, top=root)
        with SEATS.left():  # no Python to speak of is in hashing
            digest = identify(incoming)
        if rewritten(incoming):
            remove_tree(incoming)
            raise Moved
        wanted, fault, added = self.settings.merge, None, Added()
        try:
            if wanted.add or wanted.weight != 1:
                added = pin_additions(wanted, inspection, self.settings.base, incoming, rules.reserve)
        except Permanent as error:
            fault, added = error.fault, Added(unpinned(wanted.add))
            remove_tree(incoming)
        except BaseException:
            remove_tree(incoming)
            raise
        mixed = {"weight": wanted.weight, "additions": added.additions, "metadata": {**inspection.metadata, **written}}
        reference = _reference(root, run, inspection, digest).model_copy(update=mixed)
        name = job_id(reference, mine.settings)
        warnings = (*added.warnings, *_left_out(inspection))
        return Candidate(name, reference, incoming, digest_of_fingerprint(fingerprint), mine, fault, warnings)

    def take_damaged(self, root: Path, inspection: Inspection, fingerprint: Fingerprint) -> str | None:
        """Enter a job that only reports: the trainer said it was done, and what is there can't be used."""
        root, mine = self.outer.get(root, root), self._effective(run_of(inspection.path))
        known = digest_of_fingerprint(fingerprint)  # its state stands for its content
        reference = _reference(root, run_name(root, inspection.path), inspection, known)
        name = job_id(reference, mine.settings)
        return self.entering.enter_new(Candidate(name, reference, self.pins / self.incoming, known, mine, damaged(inspection)))

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


def _written(checkpoint: Path) -> dict[str, str]:
    """Return since when nothing of a checkpoint has changed, under the name that the journal's counters know it by.

    By ctimes, which nobody can set, and before it is pinned, which changes them; its folder's is that of its last renaming.
    """
    try:
        newest = max(fingerprint_and_touch(checkpoint)[1].newest, os.stat(checkpoint).st_ctime_ns)
    except OSError:  # it is going away, which the pinning finds too
        return {}
    return {WRITTEN: datetime.fromtimestamp(newest / 1e9, UTC).isoformat(timespec="milliseconds")}


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
