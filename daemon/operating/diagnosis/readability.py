"""Tries, for `ckptd check`, whether the service's user can read what lies below the roots, by the rights and by reading, and finds which
models the exports of these checkpoints need.

Asked by root, it answers for the user of the service, which is the owner of the state directory: a child process becomes that user
and looks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from daemon.checkpoints.files import export_files
from daemon.checkpoints.inspection import Inspection, inspect
from daemon.checkpoints.models.base_models import base_wanted, find_base, is_model, measure
from daemon.checkpoints.models.layer_sizes import layers_of
from daemon.checkpoints.readable import closed, closed_directory
from daemon.config.settings import Settings
from daemon.contract.disk.files import open_plain
from daemon.contract.faults.errors import CkptdError, from_oserror
from daemon.system.filesystems.access import user_name
from daemon.system.processes.as_user import ask_as
from daemon.watching.links import followed_now
from daemon.watching.scan import Scanner, rules_of

_SECONDS = 5.0
_MOST = 2000
"""Checkpoints that are looked at below one root."""
_SAID = 5
"""Directories of one root that are named."""
_LOOKS = 200
"""Checkpoints that are inspected for the model that they need: checkpoints of one run need one."""
_LOOK_SECONDS = 10.0
"""After so long no further one is: long training logs take seconds each."""
_ENTRIES = 1000
"""Folders below one folder of base models that are looked at."""
_NAMED = 4
"""Base models that are named."""
_MODELS = 20
"""Models that are measured: their headers are read."""


@dataclass
class ModelFound:
    """A model by whose size exports are estimated: a base, or a full fine-tune."""

    name: str
    """As the checkpoints name it; a full fine-tune's own folder."""
    checkpoints: int = 0
    """Checkpoints of the runs that need it."""
    missing: str = ""
    """Why it can't be used, with what to do, as a clause; "" where it can."""
    stored_bytes: int = 0
    parameters: int = 0
    layers: int | str = ""
    """Bytes that it takes to hold one of its layers at a time, or why it can't be run so, as a clause."""
    layer: int = 0
    """Bytes of each layer more."""


@dataclass(frozen=True)
class Reading:
    """What came of it."""

    summary: str
    problems: list[str] = field(default_factory=list)
    """Roots below which nothing can be read."""
    warnings: list[str] = field(default_factory=list)
    """Directories that can't be read, below roots where others can, and folders of base models that can't be listed."""
    models: list[ModelFound] = field(default_factory=list)
    """What the checkpoints below the roots need, in the order in which it was met."""
    bases: str = ""
    """The base models that `base.search` and `base.map` hold, for people; "" where neither is set."""


def tried(settings: Settings) -> Reading:
    """What the service's user can read, or this process's where that is not root or no other is known."""
    user = _user_of_service(settings)
    if user is None:
        return _tried(settings)
    return _as_user(user, lambda: _tried(settings))


def _user_of_service(settings: Settings) -> int | None:
    """The owner of the state directory, where this process is root and may become it; None where it is the same."""
    try:
        owner = settings.state_directory.stat().st_uid
    except OSError:
        return None
    return owner if os.geteuid() == 0 and owner != 0 else None


def _tried(settings: Settings) -> Reading:
    count, kinds, problems, warnings = 0, set[str](), list[str](), list[str]()
    readable = list[Path]()
    linked = followed_now(settings, _SECONDS)
    rules = replace(rules_of(settings.watch, settings.state_directory), linked=frozenset(linked))
    for root in (*settings.watch.roots, *linked):
        seen, barred = 0, list[str]()
        for candidate in Scanner(rules, most_seconds=_SECONDS).find(root, _noting(barred)):
            seen += 1
            closed_here = _barred(candidate.path, kinds)
            barred += closed_here
            readable += [] if closed_here else [candidate.path]
            if seen >= _MOST:
                break
        count += seen - min(seen, len(barred))
        said = [f"watch.roots: {sentence}" for sentence in barred[:_SAID]]
        said += [f"watch.roots: {len(barred) - _SAID} more below {root} can't be read"] if len(barred) > _SAID else []
        if barred and len(barred) >= seen:
            problems += said
        else:
            warnings += said
    warnings += _closed_bases(settings)
    return Reading(
        f"as {user_name()}: {count} checkpoint{'' if count == 1 else 's'}",
        problems,
        warnings,
        _models(readable, settings),
        _bases(settings),
    )


def _bases(settings: Settings) -> str:
    names = [name for name, folder in settings.base.map.items() if is_model(folder)]
    for folder in settings.base.search:
        names += sorted(str(place.relative_to(folder)) for place in itertools.islice(_places(folder), _ENTRIES) if is_model(place))
    if not names:
        return "no model in base.search yet" if settings.base.search else ""
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _places(folder: Path) -> Iterator[Path]:
    """Where models lie that are found by their name: `folder/name` and `folder/organization/name`."""
    for inner in _folders(folder):
        yield inner
        if not is_model(inner):
            yield from _folders(inner)


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, in order; none where it can't be listed, which is told elsewhere."""
    try:
        with os.scandir(folder) as entries:
            return sorted(folder / entry.name for entry in itertools.islice(entries, _ENTRIES) if entry.is_dir())
    except OSError:
        return []


def _closed_bases(settings: Settings) -> list[str]:
    """The folders of base models that can't be come to or listed."""
    folders = [("base.search", folder) for folder in settings.base.search]
    folders += [(f"base.map.{name!r}", folder) for name, folder in settings.base.map.items()]
    return [f"{key}: {fault.cause}; {fault.remedy}" for key, folder in folders if (fault := closed_directory(folder)) is not None]


def _models(checkpoints: Iterable[Path], settings: Settings) -> list[ModelFound]:
    """The models that exports of these checkpoints need, by the first of each run that is complete. Looked at after the scan is over, whose
    time is limited."""
    models: dict[str, ModelFound] = {}
    of_run: dict[Path, str] = {}
    looks, end = 0, time.monotonic() + _LOOK_SECONDS
    for path in checkpoints:
        if path.parent not in of_run:
            if looks >= _LOOKS or time.monotonic() > end:
                continue
            looks += 1
            if (name := _model_of(path, settings, models)) is None:
                continue
            of_run[path.parent] = name
        models[of_run[path.parent]].checkpoints += 1
    return list(models.values())


def _model_of(path: Path, settings: Settings, models: dict[str, ModelFound]) -> str | None:
    """Name of the model that a checkpoint needs, which is put into `models`; None for one that is not complete, or that no export takes."""
    try:
        inspection = inspect(path)
        if not inspection.complete or inspection.refusal is not None:
            return None
        wanted = base_wanted(inspection.method, inspection.layout, inspection.base_name, settings.base.map)
        name = wanted if wanted is not None else str(path.parent)
        if name not in models:
            if len(models) >= _MODELS:
                return None
            models[name] = _measured(name, path if wanted is None else None, inspection, settings)
        return name
    except (CkptdError, OSError):  # it went away meanwhile; or what is wrong with it is for the look that takes it
        return None


def _measured(name: str, folder: Path | None, inspection: Inspection, settings: Settings) -> ModelFound:
    """The model with its size. `folder`: where it lies; None for a base, which is looked for."""
    try:
        place = folder or find_base(name, inspection.base_revision, settings.base.search, settings.base.map)
        size = measure(place)
    except CkptdError as error:
        return ModelFound(name, missing=f"{error.fault.cause}; {error.fault.remedy}")
    sizes = layers_of(place, "full" if folder else inspection.method)
    layers = sizes if isinstance(sizes, str) else sizes.memory(None, settings.validate.new_tokens, long=bool(settings.validate.long_tokens))
    layer = 0 if isinstance(sizes, str) else 4 * sizes.layer
    return ModelFound(name, stored_bytes=size.stored_bytes, parameters=size.parameters, layers=layers, layer=layer)


def _noting(barred: list[str]) -> Callable[[OSError], None]:
    def note(error: OSError) -> None:
        fault = closed_directory(Path(os.fsdecode(error.filename)))
        if fault is not None:
            barred.append(f"{fault.cause}; {fault.remedy}")

    return note


def _barred(checkpoint: Path, kinds: set[str]) -> list[str]:
    """Why the checkpoint can't be read; of each kind of file, which is its name, one is really read."""
    fault = closed(checkpoint)
    if fault is not None:
        return [f"{fault.cause}; {fault.remedy}"]
    with contextlib.suppress(FileNotFoundError):  # it was rotated away
        for name in export_files(checkpoint):
            kind = name.rpartition("/")[2]
            if kind in kinds:
                continue
            try:
                with open_plain(checkpoint / name) as stream:
                    stream.read(1)
            except FileNotFoundError:
                continue
            except ValueError:
                continue  # no regular file: what that means is for the look at it
            except OSError as error:
                fault = from_oserror(error, "read the checkpoint", str(checkpoint / name)).fault
                return [f"{checkpoint / name}: {fault.cause}; {fault.remedy}"]
            kinds.add(kind)
    return []


def _as_user(user: int, work: Callable[[], Reading]) -> Reading:
    """The same done by a child process that is this user, with its groups and without any right of root's."""
    try:
        entry = pwd.getpwuid(user)
        groups = [entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid)]
    except KeyError:
        groups = [65534]
    try:
        fields = ask_as(user, groups, lambda: asdict(work()))
    except OSError:
        return Reading(f"could not be tested as {user_name(user)}")
    return Reading(**{**fields, "models": [ModelFound(**model) for model in fields["models"]]})
