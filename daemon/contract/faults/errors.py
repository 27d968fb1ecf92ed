"""The error vocabulary that both wings share.

The exceptions carry a `Fault` and say, by their type, what the runner may do about it; they are raised where the failure is understood and
nowhere else. `Fault` is imported when one is raised or asked for: pydantic alone takes longer to import than `ckptd --help` may.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.contract.faults.fault_codes import Code, FaultCode

if TYPE_CHECKING:
    from daemon.contract.faults.fault import Fault as Fault


def __getattr__(name: str) -> Any:
    if name == "Fault":
        from daemon.contract.faults.fault import Fault

        return Fault
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class CkptdError(Exception):
    """Base of all errors that ckptd raises on purpose."""

    def __init__(
        self, code: Code, operation: str, cause: str, remedy: str, *, path: str | Path | None = None, details: str | None = None
    ) -> None:
        from daemon.contract.faults.fault import Fault

        self.fault = Fault(
            code=code, operation=operation, cause=cause, remedy=remedy, path=None if path is None else str(path), details=details
        )
        super().__init__(self.fault.sentence())


class Permanent(CkptdError):
    """Another attempt can't succeed until a user changes something."""


class Retryable(CkptdError):
    """The same attempt may succeed after `delay` seconds (None: the runner's backoff decides)."""

    delay: float | None = None

    @classmethod
    def after(cls, delay: float, code: Code, operation: str, cause: str, remedy: str, *, path: str | Path | None = None) -> Retryable:
        """The error with a delay in seconds of the raiser's own choosing."""
        error = cls(code, operation, cause, remedy, path=path)
        error.delay = delay
        return error


class UsageError(CkptdError):
    """The command line or the configuration is wrong: exit code 2."""


DISK_RETRY_SECONDS = 60.0
"""How long an attempt waits after a full disk, or one that can only be read: a user must free space."""

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
TRANSIENT = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
})  # fmt: skip
"""What passes: exhausted handles, and a server or a disk that does not give a file now."""


def from_oserror(error: OSError, operation: str, where: str | None = None) -> CkptdError:
    """An operating system error as one of our errors: a full or read-only disk and exhausted handles are retryable, as is a file system
    that does not answer; the rest is permanent. What an export reads from outside, and may come back, `daemon.contract.disk.away` tells
    apart.

    `where`: the path to name when the error itself names none, as a failed write does.
    """
    # Of a link or a renaming it is the target's disk that is full or can't be written, and that is the second name.
    path = (error.filename2 if error.errno in {*FULL_DISK, errno.EROFS} else None) or error.filename or where
    cause = error.strerror or str(error)
    if error.errno in FULL_DISK:
        return Retryable.after(
            DISK_RETRY_SECONDS,
            FaultCode.DISK_FULL,
            operation,
            cause,
            "free space on that file system, or set output.directory or state.directory, whichever lies there, to a larger one",
            path=path,
        )
    if error.errno in TRANSIENT or (error.errno is None and isinstance(error, TimeoutError)):
        return Retryable(FaultCode.SYSTEM_RESOURCES, operation, cause, "check the system's limits and its kernel log", path=path)
    if error.errno == errno.EROFS:
        remedy = "look for disk errors in the kernel's log, and mount the disk for writing again"
        return Retryable.after(DISK_RETRY_SECONDS, FaultCode.READ_ONLY, operation, cause, remedy, path=path)
    if error.errno in (errno.EACCES, errno.EPERM):
        return Permanent(
            FaultCode.NO_PERMISSION, operation, cause, "give the daemon's user access to that path, or configure another path", path=path
        )
    return Permanent(FaultCode.OS_ERROR, operation, cause, "check that path and the attempt's log", path=path)
