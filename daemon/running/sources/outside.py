"""One look at all that a job's stages read from outside: is it there, can it be read, and what is it now.

Made in a thread that a silent file system may hold (`daemon.system.processes.looks`), never in the runner's own. What is missing or
unreadable is `Absent`, with the path that is waited for; what is there and wrong is left to the stage that reads it.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.checkpoints.completeness import read_json
from daemon.checkpoints.models.base_models import Bases, is_model
from daemon.contract.disk import away
from daemon.contract.disk.data_files import DataPlace, stamp_now
from daemon.contract.faults.errors import Fault, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.rows import JobRow, StageRow
from daemon.running.rules.resume_keys import Sources, sources_of, texts_of
from daemon.system.filesystems.mounts import mount_of, mounts

INDEX = "model.safetensors.index.json"
MOST_INDEX = 8 << 20
"""Bytes of an index that is read to see which files it names."""
_READ = re.compile(
    r".*\.safetensors|pytorch_model.*\.bin|.*\.model|merges\.txt"
    r"|(config|generation_config|tokenizer.*|special_tokens_map|added_tokens|vocab|.*\.index)\.json"
)
"""Names of the files of a base that stages read."""
_PIECE = re.compile(r"(.+)-([0-9]{1,6})-of-([0-9]{1,6})\.(safetensors|bin)")
MOST_PIECES = 10_000
WRITTEN_SECONDS = 60.0
"""A damaged file of a base that changed so lately may be one that is being copied there."""


class Absent(Exception):
    """Something is away. `key`: what is waited for, a path or the name of a base; the path of the fault may lie in it."""

    def __init__(self, key: str, fault: Fault) -> None:
        super().__init__(fault.sentence())
        self.key, self.fault = key, fault


@dataclass(frozen=True)
class Seen:
    """What a job's stages read from outside, as it is now."""

    base: Path | None
    sources: Sources | None
    """None where the job goes on without them: it has waited long enough."""
    fault: Fault | None = None
    """Why its stages can't run, for good: the base is damaged, or what is away was waited for long enough."""


@dataclass(frozen=True)
class Place:
    """A folder of ours that may lie on a mount of its own."""

    folder: Path
    key: str
    """Key of the configuration that names it."""
    mount: str
    """Where its file system was mounted when it was looked at first."""

    @classmethod
    def of(cls, folder: Path, key: str) -> Place:
        """Looks at the table of mounts; of a link that leads nowhere, at where it would lie."""
        mount = mount_of(os.path.realpath(folder), mounts())
        return cls(folder, key, mount.mountpoint if mount else "/")

    def check(self) -> None:
        """Raise Absent where it is there and can't be used. One that was deleted is made again."""
        operation = f"use {self.key}"
        if not os.path.ismount(self.mount):
            error = FileNotFoundError(f"{self.mount} is not mounted")
            raise Absent(self.mount, away.fault_of(self.mount, error, operation))
        if os.path.lexists(self.folder) and (problem := away.problem_of(self.folder)) is not None:
            raise Absent(str(self.folder), away.fault_of(self.folder, problem, operation))


def look(
    job: JobRow, stages: Mapping[str, StageRow], bases: Bases, places: Sequence[Place], required: Callable[[str], bool],
    toolchains: Path, *, whole: bool,
) -> Seen:  # fmt: skip
    """Look at a job that runs. `required`: whether texts that are away are waited for; `whole`: whether all files that a base's index names
    have to be there. Raises Absent, and OSError for what is no absence."""
    for place in places:
        place.check()
    if stages and next(iter(stages.values())).state != "failed":  # else nothing was pinned, or the pin is of no use any more
        _there(job.pin, "read the pin of the checkpoint")
    for stage in stages.values():
        if stage.state == "waiting" and stage.fault is not None and stage.fault.code == FaultCode.SOURCE_AWAY and stage.fault.path:
            _named(job, stage.fault, places, toolchains)
    if job.base is not None:
        check_base(job.base, whole=whole)
        bases.size(job.base)  # so that the runner finds it without asking
    texts = {value: _texts(path, value, required) for path, value in texts_of(job, stages).items()}
    return Seen(job.base, sources_of(job, stages, lambda value: texts.get(value, [])))


def look_for_base(job: JobRow, bases: Bases, *, whole: bool) -> Seen:
    """Look for the base of a job that has not begun. Raises Absent."""
    name = job.checkpoint.base_name or "without a name"
    try:
        folder, fault = bases.find(job.checkpoint, job.pin)
    except Retryable as error:
        raise Absent(error.fault.path or name, error.fault.model_copy(update={"code": FaultCode.SOURCE_AWAY})) from None
    if fault is not None and fault.code in (FaultCode.BASE_NOT_FOUND, FaultCode.SOURCE_AWAY):
        raise Absent(fault.path or f"base {name}", fault)
    if fault is not None and fault.code == FaultCode.BASE_DAMAGED and fault.path and _is_written(Path(fault.path)):
        cause = f"{fault.cause}; the file changed a moment ago, so it may still be written"
        written = away.fault_of(fault.path, FileNotFoundError(), "read the base model").model_copy(update={"cause": cause})
        raise Absent(str(Path(fault.path).parent), written)
    if folder is not None:
        check_base(folder, whole=whole)
    return Seen(folder, None, fault)


def key_of(job: JobRow, path: str, toolchains: Path) -> str:
    """What is waited for where a path is away: the folder of the base, the pin or the toolchain that it lies in, or the path itself."""
    if toolchains in Path(path).parents:
        return str(toolchains / Path(path).relative_to(toolchains).parts[0])
    around = (str(folder) for folder in (job.base, job.pin) if folder is not None and folder in (Path(path), *Path(path).parents))
    return next(around, path)


def check_base(folder: Path, *, whole: bool) -> None:
    """Raise Absent where the folder of a base, or a file in it that stages read, is missing or unreadable."""
    operation = "read the base model"
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _READ.fullmatch(entry.name)]
    except OSError as error:
        if not away.is_away(error):
            raise
        raise Absent(str(folder), away.fault_of(folder, error, operation)) from None
    if not is_model(folder):
        fault = away.fault_of(folder, FileNotFoundError(), operation)
        raise Absent(str(folder), fault.model_copy(update={"cause": "its config.json or its weights are not there now"}))
    wanted = [*names, *(name for name in ((*_named_by(folder / INDEX), *_series(names)) if whole else ()) if name not in names)]
    for name in wanted:
        path = folder / name
        if not os.path.exists(path):
            raise Absent(str(folder), away.fault_of(path, FileNotFoundError(), operation))
        if not os.access(path, os.R_OK, effective_ids=True):
            raise Absent(str(folder), away.fault_of(path, PermissionError("Permission denied"), operation))


def _series(names: Iterable[str]) -> list[str]:
    """Every file of the series to which files belong that are called `NAME-00001-of-00003.safetensors`."""
    series = {(match[1], match[3], match[4]) for name in names if (match := _PIECE.fullmatch(name))}
    return [
        f"{stem}-{place:0{len(count)}}-of-{count}.{ending}"
        for stem, count, ending in sorted(series) if int(count) <= MOST_PIECES for place in range(1, int(count) + 1)
    ]  # fmt: skip


def _is_written(file: Path) -> bool:
    """Whether a file changed a moment ago; one whose time is to come says nothing."""
    try:
        return 0 <= time.time() - file.stat().st_mtime < WRITTEN_SECONDS
    except OSError:
        return False


def check_vanished(base: Path, before: Sequence[Any], now: Sequence[Any]) -> None:
    """Raise Absent where files of a base are gone and nothing else is new: they may come back. `before`, `now`: its stamps.

    Where something else is new too, it is another base, and what was made of the old one is made again.
    """
    names = {row[0] for row in now}
    gone = [row[0] for row in before if row[0] not in names and _READ.fullmatch(row[0])]
    if gone and all(row in before for row in now):
        path = base / gone[0]
        raise Absent(str(base), away.fault_of(path, FileNotFoundError(), "read the base model"))


def _named_by(index: Path) -> Iterable[str]:
    """The weight files that an index names; none of one that is none, which is for whoever reads it to say."""
    try:
        status = os.stat(index)
    except OSError:
        return ()
    return _names_in(str(index), status.st_size, status.st_mtime_ns) if status.st_size <= MOST_INDEX else ()


@functools.lru_cache(maxsize=64)
def _names_in(index: str, size: int, modified: int) -> tuple[str, ...]:
    try:
        value = read_json(Path(index))
    except (OSError, ValueError, RecursionError):
        return ()
    table = value.get("weight_map") if isinstance(value, dict) else None
    names = set(table.values()) if isinstance(table, dict) and all(isinstance(file, str) for file in table.values()) else set()
    return tuple(sorted(name for name in names if "/" not in name and _READ.fullmatch(name)))


def _named(job: JobRow, fault: Fault, places: Sequence[Place], toolchains: Path) -> None:
    """Raise Absent while what an attempt found to be away is so still. A folder of ours, and what lies in it, is made again."""
    path = str(fault.path)
    if any(place.folder in Path(path).parents for place in places) and job.pin not in (Path(path), *Path(path).parents):
        return
    if job.base is not None and job.base in Path(path).parents and not os.path.lexists(path):
        return  # whether all of the base is there is asked of the base: it may be stored in other files by now
    if path not in {str(place.folder) for place in places} and (problem := away.problem_of(path)) is not None:
        raise Absent(key_of(job, path, toolchains), fault.model_copy(update={"cause": away.cause_of(problem)}))


def _there(path: Path, operation: str) -> None:
    if (problem := away.problem_of(path)) is not None:
        raise Absent(str(path), away.fault_of(path, problem, operation))


def shown(texts: str) -> str:
    """What the texts of a setting are waited for by: their path, for people."""
    try:
        return DataPlace.of(texts).shown
    except ValueError:
        return texts


def _texts(setting: str, value: str, required: Callable[[str], bool]) -> list[list[str | int]]:
    try:
        return stamp_now(value)
    except (OSError, ValueError) as error:
        if away.is_away(error) and required(value):
            path = shown(value)
            raise Absent(path, away.fault_of(path, error, f"read the texts of {setting}")) from None
        return [["", type(error).__name__]]
