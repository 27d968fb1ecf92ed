"""Files that survive a crash: atomic writes, fsync, digests, placing files without copying them twice.

Used by both wings. Order matters everywhere here: contents first, then the name, then the folder that holds
the name; a reader or a power cut at any instant sees the old state or the new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from daemon.contract import FileEntry

_FICLONE = 0x40049409
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_BLOCK = 1 << 22


def fsync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make a file's contents durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Replace `path` by `data` so that no reader ever sees a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_directory(path.parent)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's contents, in hex, read in blocks of 4 MiB."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def files_below(folder: Path) -> Iterator[Path]:
    """All regular files below `folder`, sorted, links not followed."""
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path


def seal(folder: Path) -> tuple[FileEntry, ...]:
    """Make everything below `folder` durable and readable as the umask says; give its files with their digests.

    Libraries leave files with mode 0600 behind; a published model must be as readable as any other file.
    """
    umask = os.umask(0)
    os.umask(umask)
    entries = []
    for path in files_below(folder):
        if path.stat().st_mode & 0o777 != 0o666 & ~umask:
            path.chmod(0o666 & ~umask)
        fsync_file(path)
        entries.append(FileEntry(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=sha256_file(path)))
    for directory, _, _ in os.walk(folder):
        fsync_directory(Path(directory))
    return tuple(entries)


def place(source: Path, target: Path) -> str:
    """Put the contents of `source` at the new path `target` as cheaply as is safe between folders of our own.

    Returns how: "hard link" or "copy". A hard link shares the inode: use it only where nobody rewrites
    either side in place.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
        return "hard link"
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
    shutil.copyfile(source, target)
    return "copy"


def clone(source: Path, target: Path) -> bool:
    """Reflink `source` to the new path `target`; False where the file system has no such thing."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        try:
            fcntl.ioctl(writing.fileno(), _FICLONE, reading.fileno())
            return True
        except OSError:
            pass
    target.unlink()
    return False


def exchange(first: Path, second: Path) -> None:
    """Swap two paths atomically (Linux renameat2 with RENAME_EXCHANGE). Raises OSError where that is missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def remove_tree(path: Path) -> None:
    """Remove a folder of ours whether it is there or not; raises OSError when something can't be removed."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
