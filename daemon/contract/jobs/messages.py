"""The messages between the daemon and the stages: pure data, with no behaviour beyond validation.

The daemon writes a `StageContext` as the job file, the child answers with a `StageResult` as the result file.
Nothing else passes between them, so that the executor behind the runner can be replaced. Both files are JSON.
Sizes are bytes, times are seconds, wall-clock times are ISO 8601 in UTC.

What the job file alone has, with the options in it, is imported from `job_file` when it is asked for: it needs pydantic, and what the
journal holds of results does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from daemon.contract.disk.files import FileEntry
from daemon.contract.faults.errors import Fault
from daemon.contract.records import Record
from daemon.contract.values import Json, digest_of

if TYPE_CHECKING:
    from daemon.contract.jobs.processes.job_file import ChildLimits as ChildLimits
    from daemon.contract.jobs.processes.job_file import JobFacts as JobFacts
    from daemon.contract.jobs.processes.job_file import StageContext as StageContext

CONTRACT_VERSION = 1
_OF_THE_JOB_FILE = ("ChildLimits", "JobFacts", "StageContext")


def __getattr__(name: str) -> Any:
    if name in _OF_THE_JOB_FILE:
        from daemon.contract.jobs.processes import job_file

        return getattr(job_file, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    INTERRUPTED = "interrupted"


class Verdict(StrEnum):
    """The result of the validation of an artifact."""

    PASSED = "passed"
    FAILED = "failed"
    UNVERIFIED = "unverified"


Status = Literal["succeeded", "partial", "failed"]
"""How an export ended as a whole; `daemon.contract.jobs.verdicts.status_of` holds the rule."""


class Addition(Record):
    """An adapter that is merged into the base beside the checkpoint's own, as it was when the checkpoint was taken."""

    name: str
    path: str
    """Folder from which it was pinned."""
    weight: float = 1.0
    """Factor of its delta."""
    digest: str
    """SHA-256 over names and contents of its files; "" for one that could not be used."""


ADDITIONS = ".additions"
"""Folder of a pin that holds the additions' pins, by their number. No name that an export reads."""
BESIDE = ".beside"
"""Folder of a pin that holds the weights of a whole model which lie beside its adapter, as far as they cost no copy."""
BESIDE_STATES = "states.json"
"""File in it that lists them all, copied or not: [name, inode, size, mtime in ns] of each, as it was when the adapter was taken."""


class CheckpointRef(Record):
    """One checkpoint: where it was seen, and what makes it this one."""

    root: str
    run: str
    step: int
    path: str
    layout: str
    """Name of the layout's rule that found it complete, for example `trainer-adapter`."""
    digest: str
    """SHA-256 over names and contents of the files that an export reads."""
    method: str
    """PEFT method as adapter_config.json names it ("LORA", …), or "full" for a full fine-tune."""
    base_name: str | None = None
    base_revision: str | None = None
    metadata: Json = field(default_factory=dict)
    """What training knew: epoch, loss, best metric, rank, alpha…, and when it was written; for display, never part of the identity."""
    ending: bool = False
    """Its directory has no number: it was written when training had ended, after the checkpoint of the same step."""
    weight: float = 1.0
    """Factor of its own adapter's delta."""
    additions: tuple[Addition, ...] = ()
    """Adapters that are merged with its own."""

    @property
    def mixture(self) -> list[list[str | float]]:
        """What is merged with which factor: ["", weight] for its own adapter, then [digest, weight] of each addition; [] for its own
        adapter as it is."""
        rows: list[list[str | float]] = [["", self.weight]]
        rows += [[addition.digest, addition.weight] for addition in self.additions]
        return rows if rows != [["", 1.0]] else []

    @property
    def label(self) -> str:
        """What people call it within its run, and its export's folder by default."""
        return "final" if self.ending else f"step-{self.step}"

    @property
    def identity(self) -> str:
        """Digest of root, run, step and content, and of what else is merged: never the path alone, since a resumed run writes it again."""
        return digest_of([self.root, self.run, self.step, self.digest, *([self.mixture] if self.mixture else [])])

    def other_than(self, manifest: Mapping[str, object]) -> str | None:
        """The path of the checkpoint that a published export was made of, where that is another one; None where it is this one.

        What is written again at the path of this one is this one, unless other adapters were merged with it. `manifest`: of the export,
        {} where nothing is published.
        """
        path = manifest.get("checkpoint")
        same = path == self.path and manifest.get("mixture", []) == self.mixture
        return path if isinstance(path, str) and not same and manifest.get("identity") != self.identity else None


class Fallback(Record):
    """A recorded replacement: what was done instead of what was asked for."""

    wanted: str
    taken: str
    reason: str


class ArtifactCheck(Record):
    """What validation found out about one artifact."""

    variant: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Why it failed or could not be verified; empty when it passed."""
    of_precision: bool = False
    """It failed, and all its reasons are about numbers that a less quantized form may give right."""
    remedy: str | None = None
    figures: Json = field(default_factory=dict)


class StageResult(Record):
    """The result file: how one attempt ended and what it made."""

    contract: int = CONTRACT_VERSION
    attempt: str = ""
    """`attempt_id` of the context that it answers."""
    outcome: Outcome
    strategy: str = "default"
    fault: Fault | None = None
    retry_after: float | None = None
    files: tuple[FileEntry, ...] = ()
    figures: Json = field(default_factory=dict)
    checks: tuple[ArtifactCheck, ...] = ()
    """Filled by the stages that check, `check-VARIANT` and `merged`, alone."""
    reusable: bool = True
    """False where the box, and not its inputs alone, may have decided it: it counts for its job, and no other one takes it over."""
    warnings: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the child and of the processes that it started and waited for, user and system."""
    peak_rss: int = 0
    """Largest resident set of the child, in bytes, with interpreter and libraries; where more, what all its processes held."""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


class AttemptFacts(Record):
    """One attempt as the journal knows it."""

    number: int
    strategy: str
    outcome: str | None
    started: str
    ended: str | None = None
    log: str | None = None
    fault: Fault | None = None
    estimate: int | None = None
    """Bytes of memory that were estimated before it started."""


class StageFacts(Record):
    """One stage as the journal knows it."""

    name: str
    state: str
    attempts: tuple[AttemptFacts, ...] = ()
    result: StageResult | None = None
    fault: Fault | None = None
