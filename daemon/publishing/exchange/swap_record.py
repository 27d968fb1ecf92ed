"""What a start must know of a replacement or a removal that was cut off: a record beside the staged folder, `FOLDER.swap`.

Used by `daemon.publishing.exchange.swap` alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from pydantic import Field, ValidationError

from daemon.contract.events import Event
from daemon.contract.files import write_atomic
from daemon.contract.values import Frozen
from daemon.publishing.exchange.ours import Mark

log = structlog.get_logger("publish")

NEW, OLD = ".ckptd-new", ".ckptd-old"
"""Endings of the hidden names beside a target: what comes, and what goes. Before them are random letters, so that nobody else has them."""
GONE = ".ckptd-gone"
"""Ending of the hidden name of what is being removed where staging is on another file system."""
RECORD = ".swap"


class SwapRecord(Frozen):
    """A replacement; without `new`, a removal."""

    target: str
    top: str
    new: int = 0
    """Inode of the folder that comes; 0 while it is copied."""
    old: int = 0
    """Inode of what goes; 0 where there was nothing."""
    known: dict[str, Mark] = Field(default_factory=dict)
    """What of that is ours."""
    copy_name: str = ""
    """Hidden name of a copy beside the target; "": the staged folder itself comes."""
    away: str = ""
    """Hidden name of what goes, where two renames are needed; "": it goes where the other one comes from."""


def inode_of(path: Path) -> int:
    """The inode of what lies there; 0 for nothing."""
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return 0


def record_of(staged: Path) -> Path:
    """Where the record of a staged folder lies."""
    return staged.with_name(staged.name + RECORD)


def write_record(staged: Path, told: SwapRecord) -> None:
    """Write it, durable. Raises OSError."""
    write_atomic(record_of(staged), told.model_dump_json())


def read_record(staged: Path) -> SwapRecord | None:
    """The record; None where there is none, or one of another version, which is removed. Raises OSError."""
    try:
        told = SwapRecord.model_validate_json(record_of(staged).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        log.warning(
            "a record of a publication can't be read", event_id=Event.PUBLISH_REPAIRED, path=str(record_of(staged)),
            why="it is another version's",
        )  # fmt: skip
        record_of(staged).unlink()
        return None
    return told
