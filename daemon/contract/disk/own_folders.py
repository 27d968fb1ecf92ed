"""Folders below an output that are ours alone: `.staging/INSTANCE`, `.kept/INSTANCE` and what lies in them, reached through no link.

Used by both wings. Others may write in an output, and could put a link in the place of such a folder. So it is opened from the output on,
name by name, without following a link; it must be a folder of this user; and what is done in it goes through that handle, by the path
`/proc/self/fd/N`. A child process gets a path, since libraries and other programs get it from there; it gets the inode with it, and asks
`is_still` before it writes and before it says what it wrote, as the daemon does before it believes that. So a link that was there before
is never followed, and of one that is put there while a stage writes nothing is published. To do that, somebody needs the right to rename
in the output; `chmod +t` on the output takes that from all but its owner.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REMEDY = "move it away (`mv`), and start ckptd again, or set output.directory to a folder in which only ckptd and those you trust may write"


@contextlib.contextmanager
def own(top: Path, folder: Path, *, make: bool = False) -> Iterator[Path]:
    """A path to the folder of ours `folder`, below `top`, that leads there whatever becomes of its name.

    `top` itself may be reached through links. `make`: with what is missing, open to nobody else. Raises Permanent for a link, a file or
    somebody else's folder on the way, OSError.
    """
    handle = opened(top, folder, make=make)
    at = Path(f"/proc/self/fd/{handle}")
    try:
        with named_by(at, folder):
            yield at
    finally:
        os.close(handle)


@contextlib.contextmanager
def named_by(at: Path, folder: Path) -> Iterator[None]:
    """Inside, errors name what lies below the path `at` of a handle by the name of its folder, which people know."""
    try:
        yield
    except OSError as error:
        for name in ("filename", "filename2"):
            value = getattr(error, name)
            if isinstance(value, str) and value.startswith(str(at)):
                setattr(error, name, str(folder) + value.removeprefix(str(at)))
        raise


def opened(top: Path, folder: Path, *, make: bool = False) -> int:
    """As `own`; the handle, which the caller closes."""
    first = handle = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path, parts = top, folder.relative_to(top).parts
        for depth, name in enumerate(parts):
            path = path / name
            inner, _ = enter(handle, name, path, not_ours, make=make)
            if handle != first:
                os.close(handle)
            handle = inner
            if depth > 0 and not _is_ours(os.fstat(handle), top):
                raise not_ours(path, "belongs to another user")
        return handle
    except BaseException:
        if handle != first:
            os.close(handle)
        raise
    finally:
        if handle != first:
            os.close(first)


def enter(folder: int, name: str, path: Path, refusal: Callable[[Path, str], Permanent], *, make: bool = False) -> tuple[int, bool]:
    """The folder `name` in an open one, opened through no link, and whether it was made. `path`: of it, for people.

    `make`: make it, durably, if it is missing. Raises OSError, and what `refusal` gives for a path and what is wrong with it.
    """
    try:
        return os.open(name, _FLAGS, dir_fd=folder), False
    except FileNotFoundError as error:
        if not make:
            error.filename = str(path)
            raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise refusal(path, "is a link" if path.is_symlink() else "is not a folder") from None
        error.filename = str(path)
        raise
    with contextlib.suppress(FileExistsError):
        try:
            os.mkdir(name, dir_fd=folder)
        except OSError as error:
            error.filename = str(path)
            raise
        os.fsync(folder)
    return enter(folder, name, path, refusal)[0], True


def _is_ours(status: os.stat_result, path: Path) -> bool:
    """Whether a folder below the output is this user's: as whom files are made there, which a network file system may decide.

    Root works in the daemon's too (`sudo ckptd queue retry`), where nobody but their owner may write.
    """
    if status.st_uid == os.geteuid() or (os.geteuid() == 0 and not status.st_mode & 0o022):
        return True
    try:
        with tempfile.TemporaryFile(dir=path) as probe:
            return os.fstat(probe.fileno()).st_uid == status.st_uid
    except OSError:
        return False


def not_ours(path: Path, what: str) -> Permanent:
    """The error for what is no folder of ours."""
    return Permanent(FaultCode.NOT_OURS, "use ckptd's own folders", f"it {what}; ckptd does not write through it", REMEDY, path=path)


def is_still(folder: Path, inode: int) -> bool:
    """Whether a path still leads to the folder with this inode; 0: nobody knows, and True."""
    if not inode:
        return True
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_ino == inode
