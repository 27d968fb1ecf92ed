"""What the two wings say to each other: pure data, no behaviour beyond its own consistency.

The daemon writes a `StageContext` as the job file, the child answers with a `StageResult` as the result file.
Nothing else passes between them, so that the executor behind the runner can be replaced. Both files are JSON.
Sizes are bytes, times are seconds, wall-clock times are ISO 8601 in UTC.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError, field_validator

from daemon.errors import Fault

CONTRACT_VERSION = 1


class Frozen(BaseModel):
    """Immutable, hashable where its fields are, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def digest_of(value: Any) -> str:
    """SHA-256, in hex, of a JSON value in canonical form (sorted keys, no spaces)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    RETRYABLE = "retryable"
    PERMANENT = "permanent"
    INTERRUPTED = "interrupted"


class Verdict(StrEnum):
    """What validation says about an artifact."""

    PASSED = "passed"
    FAILED = "failed"
    UNVERIFIED = "unverified"


class CheckpointRef(Frozen):
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
    metadata: dict[str, Any] = Field(default_factory=dict)
    """What training knew: epoch, loss, best metric, rank, alpha…; for display, never part of the identity."""

    @property
    def identity(self) -> str:
        """Digest of root, run, step and content: never the path alone, since a resumed run writes it again."""
        return digest_of([self.root, self.run, self.step, self.digest])


class Thresholds(Frozen):
    """What an artifact must reach against the live model to be published."""

    agreement: float = Field(ge=0, le=1)
    """Smallest share of positions whose most likely token is the reference's."""
    kl: float = Field(ge=0)
    """Largest mean Kullback-Leibler divergence KL(reference ‖ artifact), in nats a token."""
    error: float = Field(ge=0)
    """Largest |Δlogit|, in units of the standard deviation of the reference's logits."""


class ExportOptions(Frozen):
    """`[export]`: what is made of a checkpoint."""

    variants: tuple[str, ...] = ("pytorch", "onnx", "onnx-int8")
    """Artifacts to publish; `ckptd formats` lists the names. Default: the three that every box can make."""
    quantization: Literal["", "none", "int8"] = ""
    """"" leaves `variants` as it is; "none" drops the quantized ones; "int8" adds the int8 form of each format chosen."""
    opset: int = Field(default=18, ge=18, le=23)
    """ONNX operator set. 18 is the lowest that the exporter really produces and what most runtimes take."""


class MergeOptions(Frozen):
    """`[merge]`: how an adapter is merged into its base."""

    dtype: Literal["base", "float32", "bfloat16", "float16"] = "base"
    """Of the merged weights. "base" keeps each tensor's own, so that what the adapter leaves alone stays as it is, bit by bit."""
    max_shard_size: Annotated[
        Annotated[ByteSize, Field(ge=1 << 16)] | None, BeforeValidator(lambda value: None if value == "" else value)
    ] = None
    """Bytes of a weight file; None, or "" in the file, keeps the base's own division."""
    base: Literal["original", "dequantized", "dequantized-double"] = "original"
    """What an adapter is merged into whose base was loaded in 4 bits for training: the weights as they are stored, or as that
    training saw them, with or without double quantization. "original", since nothing in an adapter tells that it was so trained."""
    verify: Literal["sample", "full"] = "sample"
    """How much of the unchanged weights is compared with the base's: a sample of each tensor, or all, which reads both once more."""
    trust_remote_code: bool = False
    """Copy the Python files of a model's own code. They are never executed here, but whoever loads the model may execute them."""


DEFAULT_THRESHOLDS: dict[str, Thresholds] = {
    "pytorch": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx": Thresholds(agreement=0.97, kl=0.001, error=0.25),
    "onnx-int8": Thresholds(agreement=0.85, kl=0.05, error=2.0),
}


class ValidateOptions(Frozen):
    """`[validate]`: how artifacts are compared with the live model."""

    samples: int = Field(default=6, ge=1, le=256)
    """Prompts compared. Six give a few hundred positions in seconds on a small model."""
    new_tokens: int = Field(default=24, ge=1, le=1024)
    """Tokens decoded greedily for each prompt."""
    prompts: str = ""
    """UTF-8 text file with one prompt a line; "" uses the built-in ones. Give lines of the run's own data for a truer verdict."""
    speed_tokens: int = Field(default=64, ge=0, le=4096)
    """Tokens decoded to measure speed, in turns with PyTorch. 0 leaves speed out."""
    thresholds: dict[str, Thresholds] = Field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    """Limits by variant; a variant or a limit that is not named keeps its default."""

    @field_validator("thresholds", mode="before")
    @classmethod
    def _over_the_defaults(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        merged: dict[str, Any] = dict(DEFAULT_THRESHOLDS)
        for name, limits in value.items():
            known = DEFAULT_THRESHOLDS.get(name)
            merged[name] = {**known.model_dump(), **limits} if known and isinstance(limits, dict) else limits
        return merged


class Work(Frozen):
    """The effective configuration of a job: everything a user can set that changes its output."""

    export: ExportOptions
    validation: ValidateOptions
    merge: MergeOptions = MergeOptions()

    @property
    def digest(self) -> str:
        """Resume key of the configuration."""
        return digest_of(self.model_dump(mode="json"))

    @classmethod
    def recovered(cls, text: str) -> Work:
        """The configuration in a JSON text; of one that another version wrote, the sections that this one understands."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            sections: dict[str, Any] = {"export": ExportOptions(), "validation": ValidateOptions(), "merge": MergeOptions()}
            for name, default in sections.items():
                with contextlib.suppress(ValidationError, ValueError, KeyError, TypeError):
                    sections[name] = type(default).model_validate(json.loads(text)[name])
            return cls(**sections)


class ChildLimits(Frozen):
    """How a child must behave on a box that is busy training."""

    threads: int = 1
    nice: int = 19
    idle: bool = True
    """Use the idle scheduling and I/O classes."""
    oom_score_adj: int = 800
    device: str = "cpu"
    parent_pid: int = 0
    """The daemon's process id: a child that finds another parent ends itself. 0: no check."""
    resumable: bool = False
    """Told to stop, the child goes on to its next safe point, since what it has done till then is not lost; otherwise it
    ends at once."""


class Fallback(Frozen):
    """A way that was taken instead of the one asked for."""

    wanted: str
    taken: str
    reason: str


class FileEntry(Frozen):
    """One file of an artifact; `path` is relative to the artifact's folder, with forward slashes."""

    path: str
    size: int
    sha256: str


class ArtifactCheck(Frozen):
    """What validation found out about one artifact."""

    variant: str
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Why it failed or could not be verified; empty when it passed."""
    remedy: str | None = None
    figures: dict[str, Any] = Field(default_factory=dict)


class StageResult(Frozen):
    """The result file: how one attempt ended and what it made."""

    contract: int = CONTRACT_VERSION
    attempt: str = ""
    """`attempt_id` of the context that it answers."""
    outcome: Outcome
    strategy: str = "default"
    fault: Fault | None = None
    retry_after: float | None = None
    files: tuple[FileEntry, ...] = ()
    figures: dict[str, Any] = Field(default_factory=dict)
    checks: tuple[ArtifactCheck, ...] = ()
    """Filled by the validate stage alone."""
    warnings: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    seconds: float = 0.0
    peak_rss: int = 0
    """Largest resident set of the child, in bytes, with interpreter and libraries; where more, what all its processes held."""
    versions: dict[str, str] = Field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


class AttemptFacts(Frozen):
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


class StageFacts(Frozen):
    """One stage as the journal knows it."""

    name: str
    state: str
    attempts: tuple[AttemptFacts, ...] = ()
    result: StageResult | None = None
    fault: Fault | None = None


class JobFacts(Frozen):
    """What the journal knows about a job: the material of its report."""

    export_id: str
    created: str
    started: str | None = None
    checkpoint: CheckpointRef
    base: str | None = None
    work: Work
    stages: tuple[StageFacts, ...] = ()
    target: str = ""
    """Folder in which the export will be published."""
    warnings: tuple[str, ...] = ()


class StageContext(Frozen):
    """The job file: all that a child is told."""

    contract: int = CONTRACT_VERSION
    job: str
    stage: str
    attempt: int
    strategy: str = "default"
    checkpoint: CheckpointRef
    pin: str
    """Folder with the pinned copy of the checkpoint's files."""
    base: str | None = None
    """Folder of the base model; None for a full fine-tune."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Stage name → folder of its output, for every stage of this job that has succeeded."""
    staging: str
    """Folder to write into, on the file system of the output. Empty, but for a resumable stage (`handlers.plan`), which
    finds there what interrupted attempts with the same inputs and versions left, and decides itself what of it is whole."""
    result: str
    """Where the result file goes."""
    temporary: str
    """Folder for temporary files; removed by the daemon."""
    cache: str
    """Folder for what may be reused by other jobs."""
    work: Work
    key: str | None = None
    """Resume key: digest of all that determines the stage's output."""
    limits: ChildLimits = ChildLimits()
    facts: JobFacts | None = None
    """Only for the report stage."""

    @property
    def attempt_id(self) -> str:
        """What names this attempt among all of the journal."""
        return f"{self.job}/{self.stage}/{self.attempt}"
