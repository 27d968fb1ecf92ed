"""A folder on the machine's own disk in which an attempt writes, from which its output is copied to where the daemon expects it.

Many small writes, and files that are written and read again, cost a shared file system dearly; the copy is written once, in large blocks.
It counts only when it was read back from there with the digest that the stage's sealed file has. Whatever an attempt leaves in its scratch
folder goes with it; what a killed one left there, the next attempt on the same machine removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from daemon.contract.disk.files import FileEntry, fsync_directory, remove_tree, sha256_file, write_atomic
from daemon.contract.disk.own_folders import is_still
from daemon.contract.faults.errors import FULL_DISK, Fault, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageContext, StageResult

RESULT = "result-there.json"
"""What the child answers, in the attempt's folder, until its output was copied."""
_PREFIX, _LOCK = "ckptd-", "lock"
_BLOCK = 4 << 20


class NotCopied(Exception):
    """The output can't be copied; the text says why, as a clause."""


class Scratch:
    """The scratch folder of one attempt, in `root`, which exists on this machine. Raises OSError."""

    def __init__(self, root: Path, token: str) -> None:
        self.root = root
        os.listdir(root)  # which is not made here: it would lie on the machine's system disk
        _sweep(root)
        self.folder = root / f"{_PREFIX}{token}"
        self.staging = self.folder / "staging"
        try:
            self.staging.mkdir(parents=True, mode=0o700)
            self._lock = _locked(self.folder)
        except OSError:  # without its lock nobody would ever remove it
            with contextlib.suppress(OSError):
                remove_tree(self.folder)
            raise

    def context(self, context: StageContext) -> StageContext:
        """The job as the child gets it."""
        result = Path(context.result).with_name(RESULT)
        return context.model_copy(update={
            "staging": str(self.staging), "staging_inode": os.lstat(self.staging).st_ino, "temporary": str(self.folder / "tmp"),
            "result": str(result),
        })  # fmt: skip

    def hand_over(self, context: StageContext, alive: Callable[[], bool], code: int) -> Fault | None:
        """Copy the output to the attempt's staging folder, and then give its result; the fault where that can't be.

        `alive`: says that it goes on, and whether it may. `code`: the child's exit code.
        """
        path = Path(context.result).with_name(RESULT)
        try:
            result = StageResult.model_validate_json(path.read_bytes())
        except (OSError, ValueError):
            return self.full() if code == 74 else None  # the child has no result: how it ended says why
        if result.fault is not None and result.fault.code == FaultCode.DISK_FULL and str(result.fault.path).startswith(str(self.root)):
            return self.full()
        if result.outcome is not Outcome.INTERRUPTED and not self.staging.is_dir():
            return self._fault(
                f"the scratch folder {self.staging} was removed, or its disk is away, since the attempt began", str(self.root)
            )
        try:
            if result.outcome is Outcome.SUCCEEDED:
                copy_out(self.staging, context, result.files, alive)
        except NotCopied as error:
            return self._fault(f"the output can't be copied from {self.staging} to {context.staging}: {error}", context.staging)
        except OSError as error:
            if error.errno in FULL_DISK:  # that of the output, which is waited for
                return from_oserror(error, f"copy the output from {self.staging}", context.staging).fault
            return self._fault(
                f"the output can't be copied from {self.staging} to {context.staging}: {error.strerror or error}", context.staging
            )
        write_atomic(Path(context.result), path.read_bytes())
        return None

    def full(self) -> Fault:
        """The fault of a scratch folder without room."""
        free = shutil.disk_usage(self.root).free >> 20
        return self._fault(f"the scratch folder {self.root} has no room for what the stage writes ({free:,} MiB are free)", str(self.root))

    def _fault(self, cause: str, path: str) -> Fault:
        return unusable(cause, path)

    def close(self) -> None:
        """Remove it."""
        with contextlib.suppress(OSError):
            remove_tree(self.folder)
        os.close(self._lock)


def unusable(cause: str, path: str) -> Fault:
    """The fault of a machine whose scratch folder does not serve."""
    return Fault(
        code=FaultCode.SCRATCH_UNUSABLE, operation=f"run an attempt on {socket.gethostname()}", cause=cause, path=path,
        remedy="let `scratch` of the queue name a folder with room that each of its machines has, or leave it out",
    )  # fmt: skip


def copy_out(source: Path, context: StageContext, files: tuple[FileEntry, ...], alive: Callable[[], bool]) -> None:
    """Make the staging folder of `context` hold `files`, durable and read back; where that fails, nothing. Raises NotCopied, OSError."""
    target = Path(context.staging)
    _refuse_another(context)
    _empty(target)  # of what an attempt before this one left that had no scratch folder
    try:
        _copy_all(source, context, files, alive)
    except (NotCopied, OSError):
        with contextlib.suppress(OSError):
            if is_still(target, context.staging_inode):
                _empty(target)
        raise


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        remove_tree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _copy_all(source: Path, context: StageContext, files: tuple[FileEntry, ...], alive: Callable[[], bool]) -> None:
    target = Path(context.staging)
    for entry in files:
        (target / entry.path).parent.mkdir(parents=True, exist_ok=True)
        _copy(source / entry.path, target / entry.path, alive)
        if (target / entry.path).stat().st_size != entry.size or sha256_file(target / entry.path) != entry.sha256:
            raise NotCopied(f"{entry.path} reads back with other contents")
    for folder in {target, *((target / entry.path).parent for entry in files)}:
        fsync_directory(folder)
    _refuse_another(context)


def _refuse_another(context: StageContext) -> None:
    if not is_still(Path(context.staging), context.staging_inode):
        raise NotCopied("that folder was replaced by another one while the stage ran")


def _copy(source: Path, target: Path, alive: Callable[[], bool]) -> None:
    with open(source, "rb") as reading, open(target, "xb") as writing:
        os.fchmod(writing.fileno(), os.fstat(reading.fileno()).st_mode & 0o777)
        while block := reading.read(_BLOCK):
            writing.write(block)
            if not alive():
                raise NotCopied("the attempt was ended meanwhile")
        writing.flush()
        os.fsync(writing.fileno())
        os.posix_fadvise(writing.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # so that it is read back from where it lies


def _locked(folder: Path) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _sweep(root: Path) -> None:
    """Remove what killed attempts of this user left here."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not (folder / _LOCK).exists():
                continue
            descriptor = _locked(folder)
            remove_tree(folder)
            os.close(descriptor)
