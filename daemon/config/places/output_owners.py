"""The record in a folder of the output that says which ckptd publishes a run there: what it holds, and whose it is.

Read by the intake, which gives a run whose folder is another ckptd's another name, and made and
locked by `daemon.publishing.exchange.owners`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from daemon.config.places.export_names import folded
from daemon.config.places.paths import INSTANCE, Paths
from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.disk.files import boot_id, machine_id
from daemon.contract.values import Frozen, digest_of
from daemon.contract.version import __version__

RECORD = ".ckptd-owner-"
"""Beginning of a record's name."""
_LIMIT = 1 << 16
_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")
_CLOCK_SECONDS = 2.0
"""By which times of files and of records may differ: whole seconds, and the clock of a file server."""


class Owner(Frozen):
    """A record: the ckptd that publishes a run in this folder."""

    owner_version: int = 1
    instance: str
    """What tells its state directory from all others."""
    host: str
    state: str
    root: str
    run: str
    since: str
    """ISO 8601, UTC."""
    machine: str = ""
    """The machine's id (machine-id(5)); "" where it has none."""
    boot: str = ""
    """Id of the machine's boot; "" where nobody knows."""
    place: str = ""
    """Device, root and mount point of the mount with the state directory, as they were during that boot."""
    ckptd: str = __version__


class Training(Protocol):
    """What names a training: a checkpoint of it does."""

    @property
    def root(self) -> str:
        """The directory that is watched."""

    @property
    def run(self) -> str:
        """The run's name below it."""


def record_of(run: str) -> str:
    """Name of the record of a run in the folder of its exports: one for names that some file system takes for the same."""
    return f"{RECORD}{digest_of(ascii(folded(run)))[:12]}"


def owner_of(folder: Path, run: str) -> Owner | None:
    """Who has claimed a run in a folder; None for nobody, or a record that can't be read. For a look: a publication makes sure of it."""
    try:
        return owner_at(folder / record_of(run))
    except (OSError, ValueError):
        return None


def records_below(folder: Path) -> Iterator[Path]:
    """Every record in an output; exports, hidden folders and links are left out. Raises OSError for the folder itself."""
    with os.scandir(folder) as listed:
        entries = sorted(listed, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith(RECORD):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and not os.path.lexists(f"{entry.path}/{MANIFEST}"):
            with contextlib.suppress(OSError):
                yield from records_below(Path(entry.path))


def owner_at(record: Path) -> Owner:
    """The content of a record. Raises OSError; ValueError for what is none."""
    handle = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return parsed(handle)
    finally:
        os.close(handle)


def parsed(handle: int) -> Owner:
    """The content of an open record. Raises OSError; ValueError for what is none."""
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _LIMIT:
        raise ValueError("is no plain file, or is too large")
    try:
        return Owner.model_validate(json.loads(os.pread(handle, _LIMIT, 0)))
    except (ValidationError, RecursionError) as error:
        raise ValueError("is no record") from error


def is_anothers(owner: Owner, paths: Paths, seen: Training) -> bool:
    """Whether a run's folder belongs to another ckptd, which is not gone for good."""
    return owner.instance != paths.owner and not may_take_over(owner, seen)


def is_other_training(owner: Owner, seen: Training) -> bool:
    """Whether the owner publishes another training, which merely has the same name."""
    return (owner.host, owner.root, owner.run) != (socket.gethostname(), seen.root, seen.run)


def may_take_over(owner: Owner, seen: Training) -> bool:
    """Whether the owner of this very training is gone for good: its state directory, on this machine, has another journal by now.

    One that is missing may be on a disk that is away. A container, or a copy of a machine, may have the same host name and the same paths:
    there another state directory was not made in the place of the owner's.
    """
    if is_other_training(owner, seen) or not _is_here(owner):
        return False
    file = Path(owner.state) / INSTANCE
    try:
        if file.read_text(encoding="utf-8").strip() == owner.instance:
            return False
        claimed = datetime.fromisoformat(owner.since).timestamp()
        return file.stat().st_mtime > claimed - _CLOCK_SECONDS  # else it was there beside the owner's
    except (OSError, ValueError):
        return False


def origin_of(state: Path) -> dict[str, str]:
    """`machine`, `boot` and `place` of a record by the ckptd with this state directory."""
    return {"machine": machine_id(), "boot": boot_id(), "place": _place_of(state)}


def _is_here(owner: Owner) -> bool:
    """Whether the path that a record names leads, here, to where it led for the one who made the record."""
    if owner.boot and owner.boot == boot_id():
        return bool(owner.place) and owner.place == _place_of(Path(owner.state))
    return bool(owner.machine) and owner.machine == machine_id()


def _place_of(state: Path) -> str:
    """Device, root and mount point of the mount that a state directory lies on, from mountinfo (proc(5)); "" where it can't be read."""
    path, best = Path(os.path.realpath(state)), ("", Path("/"))
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        device, root, point = line.split(" ", 5)[2:5]
        at = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), point))
        if (at == path or at in path.parents) and len(at.parts) >= len(best[1].parts):  # of several at one place the last is seen
            best = (f"{device} {root} {point}", at)
    return best[0]
