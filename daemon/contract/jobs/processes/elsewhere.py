"""What the daemon and an attempt on another machine say to each other: files in the attempt's folder, on a file system that both reach.

The daemon writes the job file and `ORDERS`, and later perhaps `STOP` or `FENCE`. The worker (`handlers.child.elsewhere`) writes the rest.
`CLAIM` decides what the scheduler can't: whoever makes it first has the attempt. A worker that finds one begins nothing, so that a job that
is started a second time, or after the daemon gave the attempt up, does no harm; the daemon makes it itself to take an attempt back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Fault
from daemon.contract.values import Frozen

ORDERS, CLAIM, STOP, FENCE, SAID, END = "orders.json", "claim.json", "stop", "fence", "progress.jsonl", "end.json"
PROBE, PROBED = "probe.json", "probed.json"
"""`SAID`: the child's progress channel. `STOP`: end at the next safe point. `FENCE`: the attempt is settled; end at once."""
BEGUN = "begun"
"""The daemon's: made when it first sees that a worker has the attempt. Its time is compared with no other machine's."""
SCRIPT = "attempt.sh"
"""What the scheduler starts."""
OUTPUT = "scheduler.txt"
"""What the scheduler itself, or the script, has to say."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})

Model = TypeVar("Model", bound=Frozen)


class Orders(Frozen):
    """What a worker needs beside the job file."""

    token: str
    """Name of the attempt for its scheduler: no other attempt ever had it."""
    scheduler: str = "slurm"
    """Which has it."""
    command: tuple[str, ...]
    """What runs a job file."""
    environment: Mapping[str, str] = Field(default_factory=dict)
    """Variables of the child, beside those of the worker."""
    versions: Mapping[str, str] = Field(default_factory=dict)
    """Distribution → version, as the daemon has them."""
    gpus: int = 0
    log_size: int = 16 << 20
    """Bytes of the attempt's log."""
    scratch: str = ""
    """Folder of that machine's own disk to write in, with its variables of the environment; "" for none."""
    queue: str = ""
    """Name of the terms that it was handed in with."""
    memory: int = 0
    """Bytes that were asked of the scheduler."""
    seconds: float = 0.0
    """Time that was asked of it."""
    submission: Literal["none", "asked", "taken"] = "none"
    """"asked": a call was made whose answer is not known."""
    id: str = ""
    """The scheduler's own name of the job, once it is known."""
    ending: str = ""
    """What the scheduler said of its end, where it ended it."""


class Probe(Frozen):
    """What a machine is asked about itself, by `ckptd check`."""

    read: tuple[str, ...] = ()
    """Paths that it must see."""
    write: tuple[str, ...] = ()
    """Folders that it must be able to write into."""
    marks: Mapping[str, str] = Field(default_factory=dict)
    """File that was just written → what it says there, in folders that both machines must have in common."""
    entries: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Folder → some names that the daemon's machine sees in it."""
    scratch: str = ""
    """As `Orders.scratch`."""
    versions: Mapping[str, str] = Field(default_factory=dict)


class Probed(Frozen):
    """What it answers."""

    host: str
    python: str
    cores: int
    time: float
    """Its clock, in seconds since 1970."""
    unseen: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    """Folders that are there, and others than the daemon's machine has by that path."""
    scratch: str = ""
    """Why the scratch folder can't be used, as a clause."""
    differing: tuple[str, ...] = ()
    """Releases that differ, as clauses."""
    gpus: tuple[str, ...] = ()


class Claim(Frozen):
    """Who has the attempt."""

    by: Literal["worker", "daemon"]
    host: str = ""
    id: str = ""
    """The scheduler's own name of the job that runs it."""


class End(Frozen):
    """The worker's last words: nothing of the attempt runs any more."""

    code: int
    """Exit code of the child, or the negative number of the signal that ended it."""
    result: bool
    """Whether there is a result file, which others may see later than this one."""
    peak: int = 0
    """Bytes that the attempt's processes held at most."""
    out_of_memory: bool = False
    """The kernel killed for want of memory meanwhile."""
    terminated: bool = False
    """The worker itself was told to end (SIGTERM), by the scheduler."""
    fault: Fault | None = None
    """Why the worker did not start the child."""


class Stop(Frozen):
    """Why the daemon stops an attempt."""

    fault: Fault | None = None


def take(folder: Path, claim: Claim) -> bool:
    """Make the claim on the attempt in `folder`; False where somebody has it. Raises OSError.

    link(2) is atomic on NFS too; where its answer was lost, the number of links says whether it was made (open(2), O_EXCL).
    """
    path, data = folder / CLAIM, claim.model_dump_json()
    temporary = folder / f".claim-{secrets.token_hex(8)}"
    temporary.write_text(data, encoding="utf-8")
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return os.stat(temporary).st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    try:
        with open(path, "x", encoding="utf-8") as stream:
            stream.write(data)
    except FileExistsError:
        return False
    return True


def put(folder: Path, name: str, value: Frozen) -> None:
    """Write a file of the folder, whole or not at all. Raises OSError."""
    write_atomic(folder / name, value.model_dump_json())


def get(folder: Path, name: str, kind: type[Model]) -> Model | None:
    """What a file of the folder says; None where there is none that is whole. Raises OSError where that can't be known."""
    try:
        return kind.model_validate_json((folder / name).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def still_open(jobs: Path) -> list[tuple[Path, Orders]]:
    """Return the attempts below a folder of jobs that may still run: without last words, not fenced and not taken back."""
    folders = [path.parent for path in sorted(jobs.glob(f"*/*/{ORDERS}")) if _is_open(path.parent)]
    return [(folder, orders) for folder in folders if (orders := get(folder, ORDERS, Orders)) is not None]


def _is_open(folder: Path) -> bool:
    if (folder / END).exists() or (folder / FENCE).exists():
        return False
    claim = get(folder, CLAIM, Claim)
    return claim is None or claim.by == "worker"
