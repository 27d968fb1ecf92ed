"""The report as data: what `report.json` holds, version 1 of its schema.

Built by `handlers.report.content.build`, shown by `handlers.report.pages.html` and `handlers.report.pages.readme`; programs that read
`report.json` find the same words in docs/report.schema.json. Sizes are bytes, times are seconds, wall-clock times
are ISO 8601 in UTC. Fields may be added within a version; none is renamed, removed or given another meaning.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from daemon.contract.disk.files import FileEntry
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.figures import ArtifactFigures, Likeness, LiveFigures, Processor, Scores, Statistics, figures_of
from daemon.contract.jobs.messages import Fallback, Status, Verdict
from daemon.contract.jobs.points import StepPoint
from daemon.contract.values import Json


class ReportPart(BaseModel):
    """Base of the report's parts: immutable, documented by its attributes' docstrings."""

    model_config = ConfigDict(frozen=True, defer_build=True)


class Added(ReportPart):
    """An adapter that was merged into the base beside the checkpoint's own."""

    name: str
    """Name of its folder."""
    path: str
    """Folder of this machine in which it lay when the checkpoint was taken."""
    weight: float
    """Factor of its delta."""
    digest: str
    """SHA-256, in hex, over the names and contents of its files as they were merged; empty where it could not be used."""


class Checkpoint(ReportPart):
    """The checkpoint that was exported."""

    root: str
    """Watched directory of this machine below which it was found."""
    run: str
    """Training run, as a path relative to the root."""
    step: int
    """Optimizer step of the checkpoint."""
    ending: bool
    """Whether its directory has no number: written when training had ended, after the checkpoint of that step."""
    path: str
    """Folder of this machine in which training wrote it; rotation may have removed it since."""
    layout: str
    """Rule by which it was recognized, for example `trainer-adapter`."""
    digest: str
    """SHA-256, in hex, over the names and contents of the files that the export read."""
    identity: str
    """SHA-256, in hex, of root, run, step and digest, and of what was merged beside it: what makes this checkpoint this one."""
    method: str
    """PEFT method as adapter_config.json names it, or `full` for a full fine-tune."""
    metadata: Json
    """What training knew (epoch, loss, best metric, rank…); `loss_history` is a list of [step, loss], `written` when the last of its files
    was written."""
    weight: float = 1.0
    """Factor of the delta of the checkpoint's own adapter."""
    additions: tuple[Added, ...] = ()
    """Adapters that were merged beside its own."""


class Base(ReportPart):
    """The base model that the adapter was fused with; every field is null when it is not known."""

    name: str | None
    """Name that the adapter's configuration gives: a hub's, or a folder of this machine."""
    revision: str | None
    """Revision that the adapter's configuration gives."""
    folder: str | None
    """Folder of this machine from which it was read; null for a full fine-tune."""
    digest: str | None
    """Digest of the base's weights, in hex."""
    size_bytes: int | None
    """Bytes of the base's stored weights: the size before, to which `size_ratio` refers."""
    parameters: int | None
    """Number of parameters."""
    dtype: str | None
    """Data type in which the weights are stored."""
    repository: str | None = None
    """Name by which a model hub knows it; null where it is known by a folder alone."""
    license: str | None = None
    """License that its own README.md or config.json names, as model cards do, for example `apache-2.0`."""
    license_name: str | None = None
    """Name of a license that is `other`."""
    license_link: str | None = None
    """Address of a license that is `other`."""

    @property
    def title(self) -> str | None:
        """What people call it, without a folder of this machine."""
        return self.repository or (PurePosixPath(place).name if (place := self.name or self.folder) else None)


class Machine(ReportPart):
    """The machine on which the export ran; null where the system does not say."""

    cpu: str | None
    """Model name of the processor."""
    cpu_features: tuple[str, ...] = ()
    """Its instruction sets by which libraries choose how they compute, for example `avx512_vnni`."""
    logical_cores: int | None
    """Hardware threads."""
    physical_cores: int | None
    """Cores."""
    memory_bytes: int
    """Memory of the whole machine."""
    kernel: str
    """Operating system's kernel and release."""
    architecture: str
    """Instruction set, for example `x86_64`."""
    python: str
    """Version of the Python interpreter."""


class Attempt(ReportPart):
    """One child process that ran a stage."""

    number: int
    """Counted from 1 within the stage."""
    strategy: str
    """Way in which it was tried."""
    outcome: str | None
    """`succeeded`, `retryable`, `permanent` or `interrupted`; null when it had not ended."""
    started: str
    """When it was started."""
    ended: str | None
    """When it ended."""
    seconds: float | None
    """Wall time from start to end."""
    log: str | None
    """File of this machine that holds what it printed."""
    fault: Fault | None
    """What failed."""


class Stage(ReportPart):
    """One stage of the export. The report's own stage is left out, since it has not ended when this is written."""

    name: str
    """Name in the plan."""
    state: str
    """State in the journal when the report was written."""
    seconds: float | None
    """Time that the last attempt took, as the child measured it."""
    cpu_seconds: float | None
    """Processor time of the last attempt, that of the processes that it started included; null where it was not measured."""
    peak_rss_bytes: int | None
    """Largest resident set of the last attempt, interpreter and libraries included."""
    estimated_bytes: int | None
    """Memory that was estimated before the last attempt was started."""
    strategy: str | None
    """Way that gave the result."""
    attempts: tuple[Attempt, ...]
    """All attempts, oldest first."""
    fallbacks: tuple[Fallback, ...]
    """Ways that were taken instead of the ones asked for."""
    warnings: tuple[str, ...]
    """What the stage warned of."""
    fault: Fault | None
    """Why it failed; null when it succeeded, even if earlier attempts failed."""
    figures: Json
    """What the stage counted and measured, the unit in each name."""


class Artifact(ReportPart):
    """One variant that was asked for, whether it came into being or not."""

    variant: str
    """Model format, for example `onnx-int8`."""
    verdict: Verdict
    """`passed`, `failed` (also when it could not be made) or `unverified`."""
    published: bool
    """Whether the export's folder holds it: made, and not found wrong."""
    reasons: tuple[str, ...]
    """Why it failed or could not be verified; empty when it passed."""
    remedy: str | None
    """What to do about it."""
    failed_stage: str | None = None
    """Stage whose failure kept it from being made or checked; its entry among the failures says why. Null where there is none."""
    folder: str | None
    """Folder relative to the export's; null when it is not published."""
    files: tuple[FileEntry, ...]
    """Files with their size in bytes and SHA-256; empty when nothing was made."""
    size_bytes: int | None
    """Bytes of all files: the size after; null when nothing was made."""
    size_ratio: float | None
    """`size_bytes` over the base's `size_bytes`."""
    needs: str | None = None
    """Which processors give the answers that were checked, and what is open for others; null where nobody looked."""
    limits: Json
    """What validation demanded: smallest `agreement`, largest `kl` (nats a token), largest `error` (standard deviations of the logits),
    largest `perplexity` over the live model's."""
    figures: Json
    """What validation measured against the live model, the unit in each name; `error_max` is in standard deviations of the logits."""

    @cached_property
    def measured(self) -> ArtifactFigures:
        """`figures`, typed; without those of another kind than is expected."""
        return figures_of(self.figures, ArtifactFigures) or ArtifactFigures()

    def __copy__(self) -> Self:
        """Copy the fields alone: `model_copy` may give the copy other figures."""
        copied = super().__copy__()
        copied.__dict__.pop("measured", None)
        return copied


class Sample(ReportPart):
    """One of the check's first prompts, with what each model writes after it."""

    prompt: str
    """The prompt."""
    base: str | None
    """The base without the fine-tuning; null for a full fine-tune, and where the base has no head for the task."""
    live: str | None
    """The live model that artifacts were compared with."""
    artifacts: dict[str, str | None]
    """Variant → what it writes; null where its tokenizer can't be used."""


class Compared(ReportPart):
    """One model beside the live model; what was not measured, or has no meaning for the task, is null. Intervals are of 95 %."""

    name: str
    """`base` (without the adapter), `live`, or the variant."""
    perplexity: float | None = None
    """Of the prompts' tokens, each given those before it."""
    perplexity_ratio: float | None = None
    """That over the live model's."""
    perplexity_ratio_interval: tuple[float, float] | None = None
    """Interval of `perplexity_ratio`."""
    kl: float | None = None
    """Divergence from the live model, in nats a position."""
    kl_interval: tuple[float, float] | None = None
    """Interval of `kl`."""
    agreement: float | None = None
    """Share of positions with the live model's choice."""
    agreement_interval: tuple[float, float] | None = None
    """Interval of `agreement`."""
    greedy_same_median: float | None = None
    """Greedy tokens before the first one that is not the live model's, median over prompts; of the base, over the first prompts."""
    greedy_tokens_median: float | None = None
    """Tokens that were decoded of these prompts, median."""
    cosine_mean: float | None = None
    """Mean cosine of the vectors with the live model's."""
    rank_correlation: float | None = None
    """Spearman's correlation of the prompts' similarities to each other with those under the live model."""
    fine_tuning: float | None = None
    """How much of the fine-tuning's effect is in the artifact: 1 all, 0 nothing."""
    fine_tuning_interval: tuple[float, float] | None = None
    """Interval of `fine_tuning`."""
    rounding_share: float | None = None
    """What rounding the merged weights changes in the outputs, over what the adapter changes in them."""
    statistics: Statistics | None = None
    """How the differences of single positions from the live model are distributed."""


class Comparison(ReportPart):
    """Base, live model and artifacts on the same tokens."""

    rows: tuple[Compared, ...] = ()
    """The base where there is one, the live model, the artifacts that were checked."""
    texts: int | None = None
    """Prompts from which the intervals were drawn."""
    positions: int | None = None
    """Positions that were compared."""
    no_base: str | None = None
    """Why there is no base to compare with; null where there is one."""


Preference = Literal["fastest", "smallest", "nearest"]


class Choice(ReportPart):
    """An artifact that may be deployed, and how."""

    preference: Preference
    """What it is among those that passed: `nearest` has the smallest divergence from the live model."""
    variant: str
    """The artifact."""
    sentence: str
    """What speaks for it, as far as it was measured."""
    install: str | None
    """Command that installs what it needs, in the versions that the check ran with; null where its format does not say."""
    run: str | None
    """Code that runs it from the export's folder; null where its format does not say."""
    language: str | None
    """`sh` or `python`: what `run` is written in."""


class TargetChoice(ReportPart):
    """What to deploy at one target of `export.deploy`."""

    target: str
    """The target, for example `cpu-server`."""
    variant: str | None
    """The artifact; null where nothing that fits the target passed."""
    equal: tuple[str, ...] = ()
    """Artifacts that are equal to it by the figures."""
    sentence: str
    """Why, in one sentence; where there is none, what failed or what is missing."""


class Recommendation(ReportPart):
    """What to deploy. Only what passed its check is ever named."""

    sentence: str
    """The recommendation in one line, or why there is none."""
    rule: str
    """How it was chosen; empty where nothing was."""
    best: Choice | None
    """What to deploy; null where nothing that could be put to use passed."""
    others: tuple[Choice, ...] = ()
    """The smallest and the nearest, where they are others."""
    targets: tuple[TargetChoice, ...] = ()
    """What to deploy where: at the targets of `export.deploy`, or, without it, at all for which something passed."""


class StepDown(ReportPart):
    """One step to a less quantized form."""

    wanted: str
    """Variant that failed its check."""
    taken: str
    """The form that was made and checked next."""
    reason: str
    """Why `wanted` failed."""


class Replaced(ReportPart):
    """A variant asked for that was not exact enough, and what took its place."""

    asked: str
    """The variant of the configuration."""
    steps: tuple[StepDown, ...]
    """Forms that were tried, in their order."""
    taken: str | None
    """The form that is published in its place; null where none was exact enough."""
    sentence: str
    """The story in one or two sentences, with the figures."""


class Warned(ReportPart):
    """A warning, with where it comes from."""

    source: str
    """Name of the stage, or `job`, or `report`."""
    text: str
    """The warning."""


class NotVerified(ReportPart):
    """Something that nobody checked: never to be taken for good."""

    what: str
    """What was not verified."""
    why: str
    """The reason."""


class Failure(ReportPart):
    """Something that failed, in one sentence, with what to do about it."""

    source: str
    """Stage that failed, or `validate` for an artifact that was found wrong."""
    variant: str | None
    """Artifact that was found wrong; null when a stage failed."""
    sentence: str
    """What failed and why."""
    remedy: str
    """What to do about it."""
    code: str
    """Stable name for programs, for example `base-not-found`."""
    cause: str = ""
    """The cause alone, as a clause: failures with the same code, cause and remedy have one root."""
    log: str | None
    """Log file of the last attempt, on this machine."""
    details: str | None
    """Bounded traceback or end of a log."""


_BY_TOKEN = (None, "text-generation", "text2text-generation", "fill-mask", "token-classification")
"""Tasks whose models answer at each token; None is one that is not known."""


class RunSoFar(ReportPart):
    """What the run's exports say, step by step, with this one."""

    points: tuple[StepPoint, ...]
    """One for each export, in the order of training; at most 50."""
    trainers_best: int | None
    """The step that the trainer names as its best; null where it names none."""
    variant: str | None
    """The variant by whose quality checkpoints are compared; null where they can't be."""
    metric: str | None
    """What is compared: `perplexity`, `accuracy`, `macro_f1`, `exact_match`, `chrf`, or the name of a task of
    `[[validate.tasks]]`."""
    best: str | None
    """The export to deploy by it (its `export_id`); null where that can't be said."""
    best_step: int | None
    """Its step."""
    equal: tuple[str, ...] = ()
    """The exports among which no difference was seen, with `best`: one alone where it differs from all others."""
    sentence: str
    """Which checkpoint to deploy, and which of its artifacts, or why that can't be said; `ckptd quality` says the same."""


class Neighbour(ReportPart):
    """Another export of the run, which was there when this report was written."""

    export_id: str
    """Identifier of its job."""
    step: int
    """Its step."""
    ending: bool
    """Whether it is of what training ended with."""
    status: str
    """How it ended."""
    path: str
    """Its folder, as a path from inside this export's folder."""


class Neighbours(ReportPart):
    """The exports around this one in the order of training; null where there is none."""

    before: Neighbour | None = None
    """The one before."""
    after: Neighbour | None = None
    """The one after; known where steps are not exported in their order."""
    best: Neighbour | None = None
    """The one to deploy, as `run_so_far` names it in `best`, where it is another."""
    is_best: bool = False
    """Whether that is this one."""
    latest_link: str | None = None
    """The run's link `latest`, as a path from inside this export's folder: it leads to exports that are newer than this report."""
    best_link: str | None = None
    """The run's link `best`, if it was there."""


class Rate(ReportPart):
    """A share of artifacts."""

    share: float
    """From 0 to 1."""
    interval: tuple[float, float]
    """Its 95 % interval (Clopper and Pearson)."""
    hits: int
    """Artifacts for which it is so."""
    of: int
    """Artifacts in all."""


class GateErrors(ReportPart):
    """How often the checks were wrong about artifacts of small models that are known to be sound or faulty (`benchmarks/gate.py`)."""

    artifacts: int
    """Artifacts that were judged, also those that are neither for certain."""
    false_accept: Rate
    """Of those with a fault that changes at least 1 % of the choices, or with more divergence than their limit: those that passed."""
    false_reject: Rate
    """Of those without a fault and within the limit: those that failed."""
    undecided: Rate
    """Of all: those about which the texts left a limit open."""
    median_prompts: float
    """Texts that were read for a verdict, median."""


class Report(ReportPart):
    """Report of one export of one checkpoint by ckptd."""

    schema_version: Literal[1] = 1
    """Version of this schema."""
    export_id: str
    """Identifier of the job, as `ckptd show` takes it."""
    status: Status
    """`succeeded`: every variant asked for passed; `failed`: none is published; `partial`: all between."""
    verdict: str
    """The status in one line for people."""
    recommendation: Recommendation = Recommendation(sentence="", rule="", best=None)
    """What to deploy and how."""
    created: str
    """When the checkpoint's export was queued."""
    started: str | None
    """When its first stage started."""
    finished: str
    """When this report was written."""
    wall_seconds: float | None
    """From its first attempt to `finished`, without pauses of more than half a minute, as before it was tried again."""
    cpu_seconds: float | None
    """Processor time of all stages' last attempts, this report's excepted; null where none was measured."""
    checking_share: float | None
    """The share of it that the reference and the checks took, from 0 to 1."""
    gate: GateErrors | None = None
    """How often the checks of this release are wrong, measured once with small models of many kinds; null in reports of earlier ones."""
    checkpoint: Checkpoint
    """What was exported."""
    base: Base
    """What it was fused with."""
    task: str | None
    """What the model is for, as model hubs name it: `text-generation`, `text-classification`…; null where that is not known."""
    variants: tuple[str, ...]
    """Variants asked for, once the quantization level is applied."""
    configuration: Json
    """Effective configuration: every setting that changes the output."""
    versions: dict[str, str]
    """Versions of ckptd, Python and the libraries that the stages loaded."""
    machine: Machine
    """Where it ran."""
    reference: Json
    """The live model that artifacts were compared with: `dtype`, `method`, `tokens_per_second`, `load_seconds`, `peak_rss_bytes`."""
    checked_on: Json = Field(default_factory=dict)
    """The processor that validation ran on: `architecture`, `vendor`, `model`, `features`."""
    measured_on: Json = Field(default_factory=dict)
    """The processor on which speeds were measured, in the same words; {} where none were. `machine` made this report."""
    bases: Json
    """Which base the adapter fits best on the samples, where that was asked: `chosen`, `best`, `nll` (nats a token), `error`, `kl`."""
    texts: Json = Field(default_factory=dict)
    """What the texts are like: `comparison` of those that artifacts were compared on, and `calibration` by variant. Both have `sources`,
    `texts`, `tokens`, `shortest`, `median`, `p95`, `longest` (tokens of a text), `cut`, `scripts`, `unknown_share`, `byte_share`,
    `different_tokens`, `vocabulary_share` and `digest`."""
    samples: tuple[Sample, ...] = ()
    """What base, live model and artifacts write after the check's first prompts."""
    answers: Json = Field(default_factory=dict)
    """By which a server elsewhere is known to answer as the live model: `top`, and `positions`, a few of the first prompts. Each has `ids`,
    the tokens before it, and `known`, the most likely next ones as [token, live model's log-probability, base's or null]. `conversations`
    are `messages` with the `ids` that the model's chat template makes of them. {} for what is no language model of text."""
    comparison: Comparison = Comparison()
    """Base, live model and artifacts beside each other, with intervals; no rows where none was compared."""
    stages: tuple[Stage, ...]
    """Stages in the order of the plan."""
    artifacts: tuple[Artifact, ...]
    """One entry for each variant asked for, then for each form that took the place of one."""
    failures: tuple[Failure, ...]
    """Everything that failed in the end."""
    run_so_far: RunSoFar | None = None
    """The run's exports; null for the first one."""
    neighbours: Neighbours = Neighbours()
    """Where the run's other exports lie, seen from this one."""
    access: str | None = None
    """Who may read the export, where its sources are open to fewer users than its folder would be."""
    replaced: tuple[Replaced, ...] = ()
    """Variants that were not exact enough, and the less quantized forms that took their place."""
    not_verified: tuple[NotVerified, ...]
    """Everything that was not verified."""
    warnings: tuple[Warned, ...] = Field(default=())
    """All warnings."""

    @property
    def kl_unit(self) -> str:
        """Unit of the artifacts' divergence: of a model that gives one answer to a text, it is not that of tokens."""
        return "nats/token" if self.task in _BY_TOKEN else "nats"

    @property
    def has_base(self) -> bool:
        """Whether there is a base beside the live model; not for a full fine-tune."""
        return bool(self.base.name or self.base.folder)

    @property
    def live(self) -> LiveFigures:
        """`reference`, typed; without what is of another kind than is expected."""
        return figures_of(self.reference, LiveFigures) or LiveFigures()

    @property
    def scored(self) -> tuple[tuple[str, Scores | None, Likeness | None], ...]:
        """Model → its scores, and its likeness where the data says that the model speaks: base, live model, then the artifacts; () where
        none was scored."""
        live = self.live
        rows: list[tuple[str, Scores | None, Likeness | None]] = [("base", live.base_scores, None), ("live", live.scores, None)]
        rows += [(artifact.variant, artifact.measured.scores, artifact.measured.completion) for artifact in self.artifacts]
        return tuple(row for row in rows if row[1] or row[2])

    @property
    def processor(self) -> Processor | None:
        """`checked_on`, typed; None where nothing was checked."""
        return figures_of(self.checked_on, Processor) if self.checked_on else None

    @property
    def fallbacks(self) -> tuple[tuple[str, Fallback], ...]:
        """Every fallback with the stage that took it."""
        return tuple((stage.name, fallback) for stage in self.stages for fallback in stage.fallbacks)

    @property
    def published(self) -> tuple[Artifact, ...]:
        """The artifacts that the export's folder holds."""
        return tuple(artifact for artifact in self.artifacts if artifact.published)
