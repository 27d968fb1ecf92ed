"""Files that survive a crash: atomic writes, fsync, digests, reflinks, exchanged names.

Used by both wings. Order matters everywhere here: contents first, then the name, then the folder that holds
the name; a reader or a power cut at any instant sees the old state or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from daemon.contract.records import Record

_FICLONE = 0x40049409
_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MACHINE = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
_TEMPORARY = re.compile(r"\..+\.([0-9]+)\.tmp")


class FileEntry(Record):
    """One file of an artifact; `path` is relative to the artifact's folder, with forward slashes."""

    path: str
    size: int
    sha256: str


def fsync_directory(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(path: Path) -> None:
    """Make a folder with all that is missing above it, every new name durable."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        fsync_directory(folder.parent)


def fsync_file(path: str | Path) -> None:
    """Make a file's contents durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_plain(path: Path, *, links: bool = True) -> io.BufferedReader:
    """A file opened for reading. OSError, for a link too unless `links`; ValueError when it is no regular file, after which nothing of it
    was read."""
    # Not blocking, since a pipe under the file's name would never open.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is not a regular file")
    return open(descriptor, "rb")


def read_bounded(path: Path, most: int) -> bytes:
    """The bytes of a file. ValueError when it is no regular file or has more than `most` bytes; OSError."""
    with open_plain(path) as stream:
        if (size := os.fstat(stream.fileno()).st_size) > most:
            raise ValueError(f"it has {size:,} bytes, more than the {most:,} that are read")
        return stream.read(most)


def check_values(text: bytes, most: int) -> None:
    """Raise ValueError for a JSON text that may hold more than `most` values: parsed, each takes up to a hundred bytes of memory, and no
    other thread runs meanwhile. What only looks like values, in strings, counts too."""
    if sum(text.count(mark) for mark in (b",", b"[", b"{", b":")) > most:
        raise ValueError(f"it holds more than the {most:,} values that are read")


def temporary_of(path: Path) -> Path:
    """The name beside `path` under which this process puts together what will replace it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def dead_temporaries(folder: Path) -> list[Path]:
    """Names that `temporary_of` gave processes which live no more: what a crash left, in no order."""
    if not folder.is_dir():
        return []
    temporaries = [(match, entry) for entry in os.scandir(folder) if (match := _TEMPORARY.fullmatch(entry.name))]
    return [Path(entry.path) for match, entry in temporaries if not lives(int(match[1])) and not entry.is_dir(follow_symlinks=False)]


def boot_id() -> str:
    """Return what names this start of the machine (random(4)); "" where nobody knows."""
    return _text_of(_BOOT)


def host_name() -> str:
    """Return the name of this machine, without the import of a network library."""
    return os.uname().nodename


def machine_id() -> str:
    """Return what names the machine (machine-id(5)); "" where it has no name."""
    return next(filter(None, map(_text_of, _MACHINE)), "")


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def lives(process: int) -> bool:
    """Whether there is a process with this id."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def sweep_temporaries(folder: Path) -> list[Path]:
    """Remove what `dead_temporaries` finds; gives it."""
    dead = dead_temporaries(folder)
    for path in dead:
        path.unlink(missing_ok=True)
    return dead


def write_atomic(path: Path, data: bytes | str, *, durable: bool = True, mode: int | None = None) -> None:
    """Replace `path` by `data` so that no reader ever sees a part of it. `mode`: of the file, else what the umask leaves."""
    temporary = temporary_of(path)
    try:
        with open(temporary, "wb") as stream:
            stream.write(data.encode() if isinstance(data, str) else data)
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
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
    """SHA-256 of a file's contents, in hex."""
    with open(path, "rb", buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()  # in one small buffer: blocks of megabytes stay with the allocator


def walk(folder: Path, *, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` that raises OSError where a folder can't be listed, which os.walk itself passes over in silence."""

    def fail(error: OSError) -> None:
        raise error

    return os.walk(folder, topdown=topdown, onerror=fail)


def files_below(folder: Path) -> Iterator[Path]:
    """All regular files below `folder`, sorted, links not followed. Raises OSError where one can't be listed."""
    for directory, folders, names in walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path


def odd_below(folder: Path) -> list[str]:
    """Relative names of all below `folder` that is neither a regular file nor a folder: links, pipes, devices. It can't be sealed."""
    odd = []
    for directory, folders, names in walk(folder):
        for path in (Path(directory, name) for name in (*folders, *names)):
            if not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISDIR(mode)):
                odd.append(path.relative_to(folder).as_posix())
    return sorted(odd)


def seal(folder: Path, known: Mapping[str, str] | None = None) -> tuple[FileEntry, ...]:
    """Make everything below `folder` durable and readable as the umask says; give its files with their digests.

    Libraries leave files of several modes behind; what is published gets the mode that its sources allow. `known`: digests
    by relative path that were taken of the finished files already, so that these need not be read again.
    """
    umask = os.umask(0)
    os.umask(umask)
    entries = []
    for path in files_below(folder):
        if path.stat().st_mode & 0o777 != 0o666 & ~umask:
            path.chmod(0o666 & ~umask)
        fsync_file(path)
        name = path.relative_to(folder).as_posix()
        entries.append(FileEntry(path=name, size=path.stat().st_size, sha256=(known or {}).get(name) or sha256_file(path)))
    for directory, _, _ in walk(folder):
        fsync_directory(Path(directory))
    return tuple(entries)


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
    _rename(first, second, _RENAME_EXCHANGE)


def rename_new(first: Path, second: Path) -> None:
    """Rename to a name that nothing has (RENAME_NOREPLACE, where the file system knows that). Raises OSError, FileExistsError with it."""
    try:
        _rename(first, second, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise
        if os.path.lexists(second):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(first), None, str(second)) from None
        os.rename(first, second)


def _rename(first: Path, second: Path, flags: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(first), None, str(second))
    done = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), flags)
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def remove_tree(path: Path) -> None:
    """Remove a folder of ours whether it is there or not; raises OSError when something can't be removed."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)
