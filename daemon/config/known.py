"""What of the settings the verbs ask for that only look: plain values, which are read without pydantic where a daemon has written them.

A daemon writes them into its live file, out of the settings that it has validated; `daemon.operating.monitoring.as_read` says when they
count. They have the names that they have in `Settings`, so that what asks for them takes either.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from daemon.contract.faults.secrets import censored
from daemon.contract.light import dataclass
from daemon.contract.records import read_json

if TYPE_CHECKING:
    from daemon.config.settings import BaseModelSettings, MergeSettings, SelectSettings, Settings, WatchSettings

Part = TypeVar("Part")


@dataclass(frozen=True)
class KnownWatch:
    """Of `[watch]`."""

    roots: tuple[Path, ...]
    settle_seconds: float
    depth: int
    models: Literal["trained", "all"]
    links: Literal["follow", "no"]


@dataclass(frozen=True)
class KnownSelect:
    """Of `[select]`."""

    policy: Literal["all", "latest", "best", "every"]
    every: int
    final: bool
    best_variant: str
    best_task: str


@dataclass(frozen=True)
class KnownBases:
    """Of `[base]`."""

    search: tuple[Path, ...]
    map: Mapping[str, Path]


@dataclass(frozen=True)
class KnownAdapter:
    """Of `[[merge.add]]`."""

    path: Path
    weight: float


@dataclass(frozen=True)
class KnownMerge:
    """Of `[merge]`."""

    weight: float
    add: tuple[KnownAdapter, ...]


@dataclass(frozen=True)
class KnownOutput:
    """Of `[output]`."""

    directory: Path


@dataclass(frozen=True)
class KnownSettings:
    """Some of the settings of a daemon."""

    state_directory: Path
    home: str
    """What `~` stands for in the paths."""
    watch: KnownWatch
    select: KnownSelect
    base: KnownBases
    merge: KnownMerge
    output: KnownOutput
    file: Path | None = None
    """The configuration that they are of."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Those of settings that have been validated."""
        added = tuple(_part(KnownAdapter, adapter) for adapter in settings.merge.add)
        return cls(
            settings.state_directory, home(), _part(KnownWatch, settings.watch), _part(KnownSelect, settings.select),
            _part(KnownBases, settings.base), KnownMerge(settings.merge.weight, added), _part(KnownOutput, settings.output),
        )  # fmt: skip

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Those that `text` holds; None where it holds none that this version can read."""
        with contextlib.suppress(ValueError):
            return read_json(cls, text) if text else None
        return None

    def whole(self) -> Settings:
        """All settings of that configuration, validated. Raises UsageError."""
        from daemon.config.loading import load

        return load(self.file, ask_running=True, sends=False)

    def text(self) -> str:
        """As JSON; "" where something in them must not be shown."""
        text = json.dumps(dataclasses.asdict(self), default=str)
        return text if censored(text) == text else ""


if TYPE_CHECKING:
    AnySettings = Settings | KnownSettings
    AnyWatch = WatchSettings | KnownWatch
    AnySelect = SelectSettings | KnownSelect
    AnyBases = BaseModelSettings | KnownBases
    AnyMerge = MergeSettings | KnownMerge


def home() -> str:
    """The folder that `~` stands for."""
    return os.path.expanduser("~")


def _part(kind: type[Part], section: object) -> Part:
    """What is wanted of a section."""
    wanted: Any = kind
    return kind(**{field.name: getattr(section, field.name) for field in dataclasses.fields(wanted)})
