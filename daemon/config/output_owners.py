"""The record in a folder of the output that says which ckptd publishes a run there: what it holds, and whose it is.

Read by the intake, which gives a run whose folder is another ckptd's another name, and made and locked by `daemon.publishing.owners`.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

from pydantic import ValidationError

from daemon.config.export_names import folded
from daemon.config.paths import INSTANCE, Paths
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.values import Frozen, digest_of
from daemon.contract.version import __version__

RECORD = ".ckptd-owner-"
"""Beginning of a record's name."""
_LIMIT = 1 << 16


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
    ckptd: str = __version__


def record_of(run: str) -> str:
    """Name of the record of a run in the folder of its exports: one for names that some file system takes for the same."""
    return f"{RECORD}{digest_of(ascii(folded(run)))[:12]}"


def owner_of(folder: Path, run: str) -> Owner | None:
    """Who has claimed a run in a folder; None for nobody, or a record that can't be read. For a look: a publication makes sure of it."""
    try:
        handle = os.open(folder / record_of(run), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return parsed(handle)
    except (OSError, ValueError):
        return None
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


def is_anothers(owner: Owner, paths: Paths, seen: CheckpointRef) -> bool:
    """Whether a run's folder belongs to another ckptd, which is not gone for good."""
    return owner.instance != paths.owner and not may_take_over(owner, seen)


def is_other_training(owner: Owner, seen: CheckpointRef) -> bool:
    """Whether the owner publishes another training, which merely has the same name."""
    return (owner.host, owner.root, owner.run) != (socket.gethostname(), seen.root, seen.run)


def may_take_over(owner: Owner, seen: CheckpointRef) -> bool:
    """Whether the owner of this very training is gone for good: its state directory, on this machine, has another journal by now.

    One that is missing may be on a disk that is away.
    """
    if is_other_training(owner, seen):
        return False
    try:
        return (Path(owner.state) / INSTANCE).read_text(encoding="utf-8").strip() != owner.instance
    except (OSError, ValueError):
        return False
