"""What a user can set that changes what a job makes: the options of export, merge and validation, those of the formats, and all of them.

Written into the job file as they are; `daemon.config.settings` reads them from config.toml, where each key is explained. A format's own
options are declared beside its code (`daemon.contract.formats.declaration`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    SerializationInfo,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)  # fmt: skip

from daemon.contract.faults.secrets import holds_secret
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Target as DeployTarget
from daemon.contract.formats.stages import LONG_SHORTEST
from daemon.contract.formats.thresholds import Strictness, Thresholds
from daemon.contract.values import Frozen, digest_of, value_at

Options = TypeVar("Options", bound=Frozen)


_REMEMBERED = 16
"""Configurations that are kept as they were read."""
_TIMES = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*x", re.IGNORECASE)


class Target(Frozen):
    """`export.target`: what a form whose bits are chosen by measurement (onnx-mixed) has to keep to."""

    kl: float = Field(default=0.0, ge=0)
    """Largest divergence from the unquantized graph, in nats a token. 0: by the check's own limit, or as small as `size` allows."""
    size: Annotated[str, Field(max_length=40)] = ""
    """Largest size of its graphs: a share of the merged weights, for example "0.25x", or bytes, for example "300MB". "": no limit."""

    @field_validator("size")
    @classmethod
    def _is_a_size(cls, value: str) -> str:
        if value and not _TIMES.fullmatch(value.strip()):
            try:
                TypeAdapter(ByteSize).validate_python(value)
            except ValidationError:
                raise ValueError('write a share of the merged weights, for example "0.25x", or a size, for example "300MB"') from None
        return value.strip()

    def bytes_of(self, stored: int | None) -> int | None:
        """The limit in bytes for merged weights of `stored` bytes; None without one."""
        times = _TIMES.fullmatch(self.size)
        if times:
            return None if stored is None else int(float(times[1]) * stored)
        return int(TypeAdapter(ByteSize).validate_python(self.size)) if self.size else None


class ExportOptions(Frozen):
    """`[export]`: what is made of a checkpoint."""

    variants: tuple[str, ...] = ("pytorch", "onnx", "onnx-int8")
    """Artifacts to publish; `ckptd formats` lists the names. Default: the three that every box can make."""
    quantization: Literal["", "none", "fp16", "int8", "int4"] = ""
    """"" leaves `variants` as it is; "none" drops the quantized ones; "int8" and the others add that form of each format chosen."""
    deploy: tuple[DeployTarget, ...] = ()
    """Where the model will be used: what fits there is made beside `variants`, or alone where `variants` is not set. `plan.resolved`
    says which variants these are."""
    target: Target = Target()
    """What onnx-mixed keeps to."""
    opset: int = Field(default=18, ge=18, le=23)
    """ONNX operator set. 18 is the lowest that the exporter really produces and what most runtimes take."""

    @model_validator(mode="before")
    @classmethod
    def _targets_alone(cls, value: Any) -> Any:
        """Written down as no variants, so that it stays so in job files and in the journal."""
        if isinstance(value, dict) and value.get("deploy") and "variants" not in value:
            return {**value, "variants": ()}
        return value


class MergeOptions(Frozen):
    """`[merge]`: how an adapter is merged into its base."""

    dtype: Literal["base", "float32", "bfloat16", "float16"] = "base"
    """Of the merged weights, or of a full fine-tune's. "base" keeps each tensor's own, so that what the adapter leaves alone stays as it
    is, bit by bit."""
    max_shard_size: Annotated[
        Annotated[ByteSize, Field(ge=1 << 16)] | None, BeforeValidator(lambda value: None if value == "" else value)
    ] = None
    """Bytes of a weight file; None, or "" in the file, keeps the base's own division."""
    base: Literal["original", "dequantized", "dequantized-double"] = "original"
    """What an adapter is merged into whose base was loaded in 4 bits for training: the weights as they are stored, or as that
    training saw them, with or without double quantization. "original", since nothing in an adapter tells that it was so trained."""
    verify: Literal["sample", "full"] = "sample"
    """How much of the unchanged weights is compared with the base's: a sample of each tensor, or all, which reads both once more."""
    fill_rows: bool = False
    """Merge an adapter also where training enlarged the vocabulary and neither it nor the base holds the new rows of the embeddings or of
    the head: they then get the mean of the other rows. Off, since such a model is not the one that was trained."""
    trust_remote_code: bool = False
    """Copy the Python files of a model's own code. They are never executed here, but whoever loads the model may execute them."""


class OwnLimits(Frozen):
    """A table of `[validate.limits]`: the limits of a variant that a user sets, each in place of the class's."""

    agreement: float | None = Field(default=None, ge=0, le=1)
    kl: float | None = Field(default=None, ge=0)
    error: float | None = Field(default=None, ge=0)
    perplexity: float | None = Field(default=None, ge=1)

    @model_serializer(mode="wrap")
    def _what_is_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, float]:
        return {name: value for name, value in handler(self).items() if value is not None}


Undecided = Literal["figure", "accept", "reject"]
"""What counts of a limit that the texts do not decide."""
RESERVED = frozenset({"perplexity", "accuracy", "macro_f1", "exact_match", "chrf", "trainer", "quality"})
"""Names that `select.best_by` and the figures of exports have for themselves."""
PATH = "path"
"""Marks an option whose text is a path: relative to the configuration file, where it is set in one."""


class Task(Frozen):
    """Each of `[[validate.tasks]]`: an evaluation of the user's own."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")]
    command: tuple[str, ...] = ()
    """Program and arguments, which get an artifact as JSON on standard input and answer with JSON."""
    harness: tuple[str, ...] = ()
    """Tasks of lm-evaluation-harness, whose items count together."""
    include: Annotated[str, Field(pattern=r"^(/.*)?$")] = ""
    """Folder with task files for lm-evaluation-harness beside its own, as an absolute path."""
    chat_template: bool = False
    """Write the harness's prompts by the model's own chat template."""
    limit: int = Field(default=0, ge=0)
    """Items of each task of the harness; 0: all. A command gets it and may follow it."""
    metric: Annotated[str, Field(max_length=100)] = ""
    """What an item's score is; "": what a command calls it or else "score", and of the harness the task's first metric."""
    better: Literal["higher", "lower"] = "higher"
    """Of a command's score; the harness says it itself."""
    variants: tuple[str, ...] = ()
    """On which it is run beside the live model; none: on all that are exported."""
    drop: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How much worse than the live model's an artifact's figure may be, in the metric's own unit; not set: figures alone."""
    limit_seconds: float = Field(default=3600.0, gt=0, le=1_000_000)
    """How long it may take on one model."""

    @model_validator(mode="after")
    def _is_one_kind(self) -> Task:
        if bool(self.command) == bool(self.harness):
            raise ValueError("give exactly one of command and harness")
        if any("\0" in word for word in (*self.command, *self.harness, self.include)) or not all((*self.command[:1], *self.harness)):
            raise ValueError("a command begins with a program, a task of the harness has a name, and nothing has a byte 0")
        if self.command and "/" in self.command[0] and not self.command[0].startswith("/"):
            raise ValueError("a command begins with an absolute path, or with the name of a program of PATH: it runs in a temporary folder")
        if any(map(holds_secret, self.command)):
            raise ValueError(
                "a word of the command is a token or has a password in it, and report.json shows the command: let the program read it"
                " from a file, or from a variable that limits.pass_environment names"
            )
        if (self.include or self.chat_template) and not self.harness:
            raise ValueError("include and chat_template are for tasks of the harness alone")
        if self.harness and self.better != "higher":
            raise ValueError("better is for a command alone: the harness says itself which values are better")
        return self

    @model_serializer(mode="wrap")
    def _what_is_set(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what is as by default, so that a later key changes no evaluation that was begun."""
        values, fields = handler(self), type(self).model_fields
        return {name: value for name, value in values.items() if name == "name" or getattr(self, name) != fields[name].default}


class ValidateOptions(Frozen):
    """`[validate]`: how artifacts are compared with the live model."""

    samples: int = Field(default=6, ge=1, le=256)
    """Prompts compared. Six give a few hundred positions in seconds on a small model."""
    most_samples: int = Field(default=64, ge=1, le=1024)
    """Prompts that are read at most, where `samples` of them leave open whether a limit is kept: then twice as many, and so on. None more
    where it is no larger than `samples`."""
    undecided: Undecided = "figure"
    """Which verdict counts where that is open after all of them. "figure": that of the figures, "accept": passed, "reject": failed."""
    new_tokens: int = Field(default=24, ge=1, le=1024)
    """Tokens decoded greedily for each prompt."""
    prompts: Annotated[str, PATH] = ""
    """UTF-8 text file with one prompt a line, a .jsonl or .json file of rows, or a folder of them; "" uses `data`, else the built-in ones.
    The first ones are compared, and the others calibrate. Give lines of the run's own data for a truer verdict."""
    data: Annotated[str, PATH] = ""
    """The training's own data set: a folder or a file of arrow, parquet, .jsonl, .json, .csv or .txt; "" for none. A digest of each text
    decides whether it is compared or calibrates, so that none does both."""
    speed_tokens: int = Field(default=64, ge=0, le=4096)
    """Tokens decoded to measure speed, in turns with PyTorch. 0 leaves speed out."""
    long_tokens: int = Field(default=2048, ge=0, le=131072)
    """Tokens of one long text on which everything is compared too, as far as the model reaches; more where a sliding window or the length
    behind which rotary positions are scaled lies farther, and fewer where the model is large. 0 leaves it out, and the report says so."""
    bases: bool = False
    """Compare the adapter on the base as it is stored, and after nf4, by the likelihood of the prompts. For language models whose base
    is not stored quantized; always done where `merge.base` is not "original". Two more passes over the prompts."""
    keep_answers: bool = True
    """Publish what the live model answers on the prompts beside the artifacts: `ckptd verify --deep` checks these again by it, and those
    of other programs. At most 32 MiB of outputs. Whoever can read the export can read the prompts then."""
    publish_unverified: tuple[str, ...] = ()
    """Variants that are published even where no check could run, and called unverified. Without it what could not be compared is kept
    for `ckptd queue retry` and not published. For variants whose engine can't run on this machine and that you try elsewhere."""
    on_failed_check: Literal["fallback", "reject", "publish"] = "fallback"
    """What follows where a quantized variant is not as exact as its thresholds ask. "fallback": its next less quantized form is made and
    checked too, and so on, and the first that passes is published under its own name. "reject": nothing. "publish": the variant itself
    is published, marked as failed."""
    fallback_minutes: float = Field(default=120.0, gt=0)
    """No further form is begun where making and checking those before it took more than these minutes."""
    strictness: Strictness = "normal"
    """How strictly the limits of each variant's class are taken: `Thresholds.scaled` says by what rule."""
    limits: dict[str, OwnLimits] = Field(default_factory=dict)
    """Limits by variant that count in place of the class's."""
    tasks: tuple[Task, ...] = ()
    """Evaluations of the user's own, whose figures are compared item by item with the live model's."""
    thresholds: dict[str, Thresholds] = Field(default_factory=lambda: catalog().thresholds, validate_default=True)
    """The limits that count, of every variant: what follows from the two above, and what a job is judged by. As a key of the
    configuration it is `limits` by its name of 1.0.0."""

    @property
    def budget(self) -> int:
        """Prompts that may be read."""
        return max(self.samples, self.most_samples)

    @field_serializer("thresholds")
    def _what_is_limited(self, value: dict[str, Thresholds]) -> dict[str, dict[str, float]]:
        """Written without the limits that are not set, so that a limit which is new changes no job's key."""
        return {name: {key: limit for key, limit in vars(limits).items() if limit is not None} for name, limits in value.items()}

    @field_validator("tasks")
    @classmethod
    def _names_differ(cls, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        names = [task.name for task in tasks]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two have the name {twice!r}")
        if taken := next((name for name in names if name in RESERVED), None):
            raise ValueError(f"{taken!r} is the name of a figure that ckptd measures itself; choose another")
        return tasks

    @field_validator("long_tokens")
    @classmethod
    def _none_or_a_text(cls, value: int) -> int:
        if 0 < value < LONG_SHORTEST:
            raise ValueError(f"write 0 for no long text, or at least {LONG_SHORTEST}")
        return value

    @field_validator("thresholds", mode="before")
    @classmethod
    def _those_that_count(cls, value: Any, info: ValidationInfo) -> Any:
        """Of each variant: its class by the strictness, over it what the older name sets, over that what `limits` sets."""
        if not isinstance(value, dict):
            return value
        classes, strictness = catalog().thresholds, info.data.get("strictness", "normal")
        counting: dict[str, Any] = {name: limits.scaled(strictness) for name, limits in classes.items()}
        for name, limits in value.items() if value != classes else ():
            counting[name] = _over(counting.get(name), limits)
        for name, own in info.data.get("limits", {}).items():
            if name in counting:  # any other is said to be wrong by `daemon.config.loading`
                counting[name] = _over(counting[name], own.model_dump(exclude_none=True))
        return counting


def _over(below: Any, limits: Any) -> Any:
    """Some limits over all those of a variant; what is no table is left to the check of types."""
    known = below.model_dump() if isinstance(below, Thresholds) else below
    return {**known, **limits} if isinstance(known, dict) and isinstance(limits, dict) else limits


class Work(Frozen):
    """The effective configuration of a job: everything a user can set that changes its output.

    As JSON the formats' sections stand beside the others: {"export": …, "validation": …, "merge": …, "onnx": …}.
    """

    export: ExportOptions
    validation: ValidateOptions
    merge: MergeOptions = MergeOptions()
    formats: dict[str, SerializeAsAny[Frozen]] = Field(default_factory=dict)
    """Section → options, for each section that a format declares."""

    @model_validator(mode="before")
    @classmethod
    def _sections_of_formats(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        own = {name: section for name, section in value.items() if name in cls.model_fields and name != "formats"}
        given = {**value.get("formats", {}), **{name: section for name, section in value.items() if name not in cls.model_fields}}
        sections = catalog().sections
        if unknown := sorted(given.keys() - sections.keys()):
            raise ValueError(f"no format that is installed has a section [{unknown[0]}]")
        formats = {}
        for name, options in sections.items():
            section = given.get(name, {})
            formats[name] = section if isinstance(section, options) else options.model_validate(section)
        return {**own, "formats": formats}

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        data = handler(self)
        formats = data.pop("formats", {})
        return {**data, **{name: section for name, section in formats.items() if section or not info.exclude_defaults}}

    def options(self, kind: type[Options]) -> Options:
        """The section of a format whose options are of this class."""
        return next((section for section in self.formats.values() if isinstance(section, kind)), None) or kind()

    def with_options(self, options: Frozen) -> Work:
        """The same configuration with another section of a format."""
        section = next(name for name, kind in catalog().sections.items() if isinstance(options, kind))
        return self.model_copy(update={"formats": {**self.formats, section: options}})

    def setting(self, path: str) -> Any:
        """The value of a section, or of a key in it ("export.opset"), as JSON has it. Raises KeyError or AttributeError
        for one that does not exist."""
        section, *keys = path.split(".")
        value = self.formats[section] if section in self.formats else getattr(self, section)
        data = value.model_dump(mode="json", include={keys[0]} if keys else None)
        for key in keys:
            data = data[key]
        return data

    @functools.cached_property
    def text(self) -> str:
        """It as JSON, as the journal has it."""
        return self.model_dump_json()

    @functools.cached_property
    def plain(self) -> Any:
        """The same as a JSON value."""
        return json.loads(self.text)

    @functools.cached_property
    def digest(self) -> str:
        """Resume key of the configuration. Made of what differs from the defaults, so that a new option changes no job's key.

        The limits count once, as those that an artifact is judged by.
        """
        asked = {"validation": {"strictness", "limits"}}
        return digest_of(self.model_dump(mode="json", exclude_defaults=True, exclude=asked))

    def shared(self) -> Work:
        """The same configuration, in one object for all that have it."""
        return Work.recovered(self.text)

    @classmethod
    @functools.lru_cache(_REMEMBERED)
    def recovered(cls, text: str) -> Work:
        """The configuration in a JSON text; of one that another version wrote, every key that this one understands. The same for all jobs
        with this text: most have one, and a thousand of them can wait at the same time."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            sections: dict[str, Any] = {"export": ExportOptions(), "validation": ValidateOptions(), "merge": MergeOptions()}
            sections |= {name: kind() for name, kind in catalog().sections.items()}
            with contextlib.suppress(ValueError):
                data = json.loads(text)
                sections |= {name: _understood(type(default), value_at(data, name)) for name, default in sections.items()}
            return cls(**sections)


def _understood(kind: type[Frozen], value: Any) -> Frozen:
    """What of a section is valid: a key that isn't has its default, alone."""
    left = dict(value) if isinstance(value, dict) else {}
    while left:
        try:
            return kind.model_validate(left)
        except ValidationError as error:
            wrong = {item["loc"] for item in error.errors()}
            if not any(_without(left, place) for place in wrong):
                break
    return kind()


def _without(value: Any, place: Sequence[int | str]) -> bool:
    """Take the value at a place out of nested objects, or all of the list in which it lies; whether it was there."""
    if not place or not isinstance(value, dict) or place[0] not in value:
        return False
    if len(place) > 1 and _without(value[place[0]], place[1:]):
        return True
    del value[place[0]]
    return True
