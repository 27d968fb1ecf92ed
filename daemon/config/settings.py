"""The settings as types: every section and key with its default, its bounds and what follows from it.

Sources, strongest first: `--set`, `CKPTD_SECTION__KEY`, the short `EXPORT_*` names, the TOML files, the defaults below.
config.toml says what a key means, its unit, and why it has that default. Other modules load settings through `daemon.config.loading`.
"""

from __future__ import annotations

import functools
import grp
import os
import re
import string
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    Field,
    PrivateAttr,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from daemon.config import windows
from daemon.config.cluster import ClusterSettings
from daemon.config.deliver.targets import Targets
from daemon.config.environment import CommandLine, ListFriendlyEnv, short_names
from daemon.config.notify import NotifySettings
from daemon.config.page import PageSettings
from daemon.config.places.states import own_state, state_of_service
from daemon.config.section import OptionalPath, Section, distinct
from daemon.config.sources import over
from daemon.contract.formats.catalog import catalog
from daemon.contract.frozen import without_derived
from daemon.contract.jobs.options import PATH, ExportOptions, MergeOptions, ValidateOptions, Work
from daemon.contract.jobs.plan import effective_variants, resolved
from daemon.contract.language.catalog import Language, language_of

PLACEHOLDERS = {
    "run": "run", "step": 1, "identity": "0123456789ab", "date": "2026-01-31", "model_name": "model", "epoch": "0.5", "metric": "1.234",
    "quantization": "int8",
}  # fmt: skip
"""The fields of `output.naming`, each with a value of its kind."""


class WatchSettings(Section):
    """`[watch]`: where trainers write, and when to believe that they are done."""

    roots: tuple[Path, ...] = ()
    settle_seconds: float = Field(default=3.0, ge=0, le=3600)
    rescan_seconds: float = Field(default=30.0, gt=0, le=86400)
    stale_seconds: float = Field(default=900.0, gt=0)
    backend: Literal["auto", "inotify", "poll"] = "auto"
    depth: int = Field(default=0, ge=0, le=64)
    models: Literal["trained", "all"] = "trained"
    links: Literal["follow", "no"] = "follow"


class SelectSettings(Section):
    """`[select]`: which checkpoints are exported."""

    policy: Literal["all", "latest", "best", "every"] = "all"
    every: int = Field(default=0, ge=0)
    final: bool = True
    best_by: str = "trainer"
    best_variant: str = ""

    @property
    def by_quality(self) -> bool:
        """Whether `best` follows what was measured of the artifacts."""
        return self.best_by != "trainer"

    @property
    def best_task(self) -> str:
        """The one of `validate.tasks` that counts; "" where none is named."""
        return "" if self.best_by in ("trainer", "quality") else self.best_by


class BaseModelSettings(Section):
    """`[base]`: where the base models lie."""

    search: tuple[Path, ...] = ()
    map: dict[str, Path] = Field(default_factory=dict)


class OutputSettings(Section):
    """`[output]`: where exports go and what they are called."""

    directory: Path = Path("exports")
    naming: str = "{run}/step-{step}"
    keep_rejected: bool = False
    kept_size: ByteSize = Field(default=ByteSize(4 << 30), ge=0, validate_default=True)
    mode: str = ""
    group: str = ""
    wider_than_sources: bool = False

    @field_validator("mode")
    @classmethod
    def _mode_is_of_files(cls, value: str) -> str:
        if value and (not re.fullmatch("0?[0-7]{3}", value) or int(value, 8) & 0o111 or int(value, 8) & 0o600 != 0o600):
            raise ValueError("is no mode of files that their owner can read and write; for example '0640', or '' to go by the umask")
        return value

    @field_validator("group")
    @classmethod
    def _group_exists(cls, value: str) -> str:
        if value:
            try:
                grp.getgrnam(value)
            except KeyError:
                raise ValueError(f"there is no group {value!r} on this machine; name one of `getent group`, or '' for none") from None
        return value

    @field_validator("naming")
    @classmethod
    def _naming_has_known_fields(cls, value: str) -> str:
        try:
            fields = {name for _, name, _, _ in string.Formatter().parse(value) if name is not None}
        except ValueError as error:
            raise ValueError(f"is not a naming pattern ({error}); try '{{run}}/step-{{step}}'") from error
        if "variant" in fields:
            raise ValueError("can't hold {variant}: an export holds all its variants, each in a folder of its name; leave it out")
        unknown = fields - set(PLACEHOLDERS)
        if unknown:
            raise ValueError(f"knows no {{{sorted(unknown)[0]}}}; the fields are {', '.join('{' + name + '}' for name in PLACEHOLDERS)}")
        if not {"run", "step"} <= fields:
            raise ValueError("must hold {run} and {step}, or exports would overwrite each other; try '{run}/step-{step}'")
        if value.startswith("/") or any(part in ("..", ".", "") or part.startswith(".") for part in value.split("/")):
            raise ValueError("must be a relative path without hidden or '..' parts; try '{run}/step-{step}'")
        try:
            value.format(**PLACEHOLDERS)
        except (ValueError, LookupError, AttributeError) as error:
            raise ValueError(f"is not a naming pattern ({error}); try '{{run}}/step-{{step:06d}}'") from error
        return value


class StateSettings(Section):
    """`[state]`: journal, pins, attempt logs."""

    directory: OptionalPath = None


class PinSettings(Section):
    """`[pin]`: the snapshot that rotation cannot take away."""

    directory: OptionalPath = None
    copy_limit: ByteSize = Field(default=ByteSize(1 << 30), ge=0, validate_default=True)


LEAST_FACTOR, LARGEST_FACTOR = 0.0001, 100.0
"""Between these, in absolute value, a factor weighs an adapter: below, its delta is lost in rounding, and above, the base is."""


def _is_factor(value: float) -> float:
    """The value; refuses one that would leave the adapter out, or the base."""
    if abs(value) < LEAST_FACTOR:
        raise ValueError(
            f"is a factor and can't be {value:g}, with which the adapter would not be merged; leave the adapter out, or give for example"
            " 0.5"
        )
    if abs(value) > LARGEST_FACTOR:
        raise ValueError(f"is a factor and can't be {value:g}: beyond {LARGEST_FACTOR:g} nothing is left of the base; give for example 0.5")
    return value


Factor = Annotated[float, Field(allow_inf_nan=False), AfterValidator(_is_factor)]
"""Factor of an adapter's delta."""


class AddedAdapter(Section):
    """`[[merge.add]]`: an adapter that is merged beside the checkpoint's own."""

    path: Path
    weight: Factor = 1.0


class MergeSettings(MergeOptions, Section):
    """`[merge]`: how an adapter is merged, and what with. What it is merged with becomes part of the checkpoint when that is taken."""

    weight: Factor = 1.0
    add: tuple[AddedAdapter, ...] = ()

    @property
    def options(self) -> MergeOptions:
        """What a job follows when it changes."""
        return MergeOptions(**{name: getattr(self, name) for name in MergeOptions.model_fields})


class LimitSettings(Section):
    """`[limits]`: what exports may take from the box."""

    jobs: int = Field(default=1, ge=1, le=64)
    stages: int = Field(default=2, ge=1, le=64)
    threads: int = Field(default=0, ge=0, le=1024)
    priority: Literal["idle", "low", "normal"] = "idle"
    raise_priority_hours: float = Field(default=0.0, ge=0)
    memory_fraction: float = Field(default=0.8, gt=0, le=1)
    memory_reserve: ByteSize = Field(default=ByteSize(256 << 20), ge=0, validate_default=True)
    disk_reserve: ByteSize = Field(default=ByteSize(1 << 30), ge=0, validate_default=True)
    stage_timeout: float = Field(default=7200.0, gt=0)
    stop_seconds: float = Field(default=20.0, ge=0, le=600)
    pass_environment: tuple[str, ...] = ()
    attempts: int = Field(default=3, ge=1, le=100)
    crashes: int = Field(default=5, ge=1, le=1_000_000)
    retry_seconds: float = Field(default=10.0, ge=0)
    away_hours: float = Field(default=24.0, ge=0)
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def effective_threads(self) -> int:
        """`threads`, where 0 stands for half of this process's cores, at least one."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // 2)


class ToolchainSettings(Section):
    """`[toolchains]`: how separate environments for exporters are installed."""

    auto_install: bool = False
    installer: Literal["auto", "pip", "uv"] = "auto"


class ScheduleSettings(Section):
    """`[schedule]`: when heavy stages may run."""

    heavy: tuple[str, ...] = ()
    timezone: str = ""
    overrun: Literal["finish", "stop"] = "finish"

    @field_validator("heavy")
    @classmethod
    def _heavy_is_cron(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if problems := [problem for problem in map(windows.problem_of, value) if problem]:
            raise ValueError("; ".join(problems))
        return value

    @field_validator("timezone")
    @classmethod
    def _timezone_exists(cls, value: str) -> str:
        if problem := windows.zone_problem(value):
            raise ValueError(problem)
        return value


class RetentionSettings(Section):
    """`[retention]`: which exports are kept. Where one of its keys is set, the others are 0 unless they are set too."""

    keep_last: int = Field(default=5, ge=0)
    keep_best: int = Field(default=3, ge=0)
    keep_days: float = Field(default=0.0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _only_what_is_set(cls, value: Any) -> Any:
        return {**dict.fromkeys(cls.model_fields, 0), **value} if isinstance(value, dict) and value else value

    @property
    def by_default(self) -> bool:
        """Whether nobody has set any rule: then exports that were there before, or made by hand, are left alone."""
        return not self.model_fields_set

    @property
    def said(self) -> str:
        """What stays of each run, in words."""
        rules = [
            *([f"the latest {self.keep_last}"] if self.keep_last else []), *([f"the best {self.keep_best}"] if self.keep_best else []),
            *([f"those of the last {self.keep_days:g} days"] if self.keep_days else []),
        ]  # fmt: skip
        if not rules:
            return "keeps all (no rule of [retention] is set)"
        where = "[retention], by default" if self.by_default else "[retention]"
        return f"keeps {', '.join(rules)} and what `prune --keep` names, of each run; older ones are removed ({where})"


class LogSettings(Section):
    """`[log]`: what is logged, and in which form."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"

    @field_validator("level", mode="before")
    @classmethod
    def _level_in_any_case(cls, value: Any) -> Any:
        # Another value stays as it is: in lower case a token would look like a word, and be shown in the error.
        return value.lower() if isinstance(value, str) and value.lower() in ("debug", "info", "warning", "error") else value


class ReportSettings(Section):
    """`[report]`: how an export's report is written."""

    language: Literal["auto", "en", "zh_CN"] = "auto"

    @property
    def spoken(self) -> Language:
        """The language of the pages: "auto" is that of this process's locale."""
        return language_of(os.environ) if self.language == "auto" else self.language


class MetricsSettings(Section):
    """`[metrics]`: figures for a monitoring system."""

    textfile: OptionalPath = None


with warnings.catch_warnings():
    # The section is called [validate]; pydantic warns that a long-deprecated class method has the same name.
    warnings.simplefilter("ignore", UserWarning)

    class _Settings(BaseSettings):
        """All sections."""

        model_config = SettingsConfigDict(
            frozen=True, extra="forbid", hide_input_in_errors=True, env_prefix="CKPTD_", env_nested_delimiter="__"
        )

        watch: WatchSettings = WatchSettings()
        select: SelectSettings = SelectSettings()
        base: BaseModelSettings = BaseModelSettings()
        output: OutputSettings = OutputSettings()
        state: StateSettings = StateSettings()
        pin: PinSettings = PinSettings()
        merge: MergeSettings = MergeSettings()
        export: ExportOptions = ExportOptions()
        validate: ValidateOptions = ValidateOptions()  # type: ignore[assignment]
        limits: LimitSettings = LimitSettings()
        cluster: ClusterSettings = ClusterSettings()
        toolchains: ToolchainSettings = ToolchainSettings()
        schedule: ScheduleSettings = ScheduleSettings()
        notify: NotifySettings = NotifySettings()
        deliver: Annotated[Targets, AfterValidator(distinct)] = ()
        retention: RetentionSettings = RetentionSettings()
        report: ReportSettings = ReportSettings()
        log: LogSettings = LogSettings()
        metrics: MetricsSettings = MetricsSettings()
        page: PageSettings = PageSettings()
        _older: tuple[str, ...] = PrivateAttr(default=())

        @property
        def jobs_at_once(self) -> int:
            """Jobs that may be at work at the same time."""
            return max(self.limits.jobs, self.cluster.jobs) if self.cluster.is_used else self.limits.jobs

        @property
        def older(self) -> tuple[str, ...]:
            """Sentences about keys of earlier versions that set some of these values; `daemon.config.loading` knows them."""
            return self._older

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """Strongest first. The file comes in as keyword arguments."""
            short = InitSettingsSource(settings_cls, short_names(dict(os.environ)))
            return CommandLine(settings_cls), ListFriendlyEnv(settings_cls), short, init_settings

        @classmethod
        def merged(cls, values: dict[str, Any]) -> dict[str, Any]:
            """`values` of the files below the environment and the command line, not validated."""
            merged = values
            for source in (short_names(dict(os.environ)), ListFriendlyEnv(cls)(), CommandLine(cls)()):
                merged = over(merged, source)
            return merged

        @property
        def state_directory(self) -> Path:
            """`state.directory`, else systemd's, else the user's own. `daemon.config.loading` knows more of a file's settings."""
            return self.state.directory or state_of_service() or own_state()

        @functools.cached_property
        def work(self) -> Work:
            """What determines a job's output."""
            sections = {name: getattr(self, name) for name in catalog().sections}
            return Work(export=resolved(self.export), validation=self.validate, merge=self.merge.options, formats=sections)

        @property
        def variants(self) -> tuple[str, ...]:
            """The variants that jobs publish."""
            export = resolved(self.export)
            return effective_variants(export.variants, export.quantization)

        def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
            """The same with other values, and without what was worked out of this one's."""
            return without_derived(super().model_copy(update=update, deep=deep))

        def anchored(self, folder: Path) -> Self:
            """The same settings with every path made absolute below `folder`. What was not set still counts as not set."""

            def absolute(value: Any, metadata: Sequence[object] = ()) -> Any:
                if PATH in metadata and isinstance(value, str) and value and "\0" not in value:
                    return value if os.path.isabs(value) else str(absolute(Path(value)))
                if isinstance(value, Path):
                    return Path(os.path.normpath(folder / value.expanduser()))
                if isinstance(value, tuple):
                    return tuple(absolute(item) for item in value)
                if isinstance(value, dict):
                    return {key: absolute(item) for key, item in value.items()}
                if isinstance(value, Section | ValidateOptions):
                    return value.model_copy(update=changed(value))
                return value

            def changed(values: BaseModel) -> dict[str, Any]:
                fields = type(values).model_fields
                pairs = {name: (old := getattr(values, name), absolute(old, field.metadata)) for name, field in fields.items()}
                return {name: new for name, (old, new) in pairs.items() if new != old}

            return self.model_copy(update=changed(self))


if TYPE_CHECKING:
    Settings = _Settings
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # The formats that are installed bring sections of their own, each with the class that its declaration names.
        Settings = create_model(
            "Settings", __base__=_Settings, __module__=__name__, **{name: (kind, kind()) for name, kind in catalog().sections.items()}
        )  # fmt: skip
