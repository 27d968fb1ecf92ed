"""What is away may come back: whether an error says that a path can't be reached now, and how that is told.

An automount, a server that starts again, a folder that is downloaded once more: its paths are missing or unreadable for a while, and right
again afterwards. That is no property of what an export is made of, so it is waited for (`limits.away_hours`). What can be read and is wrong
is not away. Both wings ask here, so that they agree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode

AWAY = frozenset({
    errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ESTALE, errno.EIO, errno.EREMOTEIO, errno.ENXIO, errno.ENODEV,
    errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
})  # fmt: skip
"""What the system says of a path that is missing, closed, or on a file system that its server or disk does not give now."""
AWAY_KINDS = (FileNotFoundError, NotADirectoryError, PermissionError, TimeoutError, ConnectionError)
"""The same where an error has no number: libraries in other languages, and a question that was not answered in time."""
REMEDY = "nothing if it comes back by itself (a mount, a copy); else put it back or make it readable: the export then continues"
"""How the remedy of such a fault begins; the runner adds for how long that is waited for."""


def is_away(error: BaseException | None) -> bool:
    """Whether an error says that something is away, and not that it is wrong."""
    return isinstance(error, OSError) and (error.errno in AWAY or (error.errno is None and isinstance(error, AWAY_KINDS)))


def look(path: str | Path) -> None:
    """Raise OSError where a path is not there or can't be read: a file's first byte is read, a folder's first entry is listed."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            with os.scandir(handle) as entries:
                next(entries, None)
        elif stat.S_ISREG(mode):
            os.read(handle, 1)
    finally:
        os.close(handle)


def problem_of(path: str | Path) -> OSError | None:
    """Why a path is away, None where it is there. What else `look` meets is for whoever reads it to say."""
    try:
        look(path)
    except OSError as error:
        return error if is_away(error) else None
    except ValueError:  # a name that no file system takes
        return None
    return None


def problem_of_whole(path: str | Path) -> OSError | None:
    """The same of what never is an empty folder, as a model, an adapter or a toolchain: that is the mount point of what is not mounted."""
    if (problem := problem_of(path)) is not None:
        return problem
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except (OSError, ValueError):
        return None
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) if empty else None


def cause_of(error: BaseException) -> str:
    """Why something is away, as a clause."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "it is not there now"
    if isinstance(error, TimeoutError):
        return "its file system does not answer"
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"it can't be read now ({said})"


def fault_at(error: OSError, places: Sequence[Path], operation: str) -> Fault | None:
    """What is away by an error: of files below these places of our own the place as a whole, or nothing; of others the file itself."""
    path = Path(os.fsdecode(error.filename))
    for place in places:
        if place in (path, *path.parents):
            return fault_of_whole(place, operation)
    return fault_of(path, error, operation)


def fault_of_whole(place: Path, operation: str) -> Fault | None:
    """The fault of a place that is away as a whole (`problem_of_whole`); None where it is there."""
    problem = problem_of_whole(place)
    return None if problem is None else fault_of(place, problem, operation)


def fault_of(path: str | Path, error: BaseException, operation: str) -> Fault:
    """The fault of what is away."""
    return Fault(code=FaultCode.SOURCE_AWAY, operation=operation, cause=cause_of(error), remedy=REMEDY, path=os.fsdecode(path))
