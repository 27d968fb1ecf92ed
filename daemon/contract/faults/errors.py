"""The error vocabulary that both wings share.

A `Fault` is an error as data: it crosses the process boundary, lies in the journal and ends in the log, the
terminal and the report. The exceptions carry one and say, by their type, what the runner may do about it;
they are raised where the failure is understood and nowhere else.
"""

from __future__ import annotations

import errno
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator

from daemon.contract.faults.advice import (
    MOST_OF_SENTENCE,
    MOST_OF_TEXT,
    bounded_list,
    first_clause,
    shortened,
    whole_clauses,
    without_advice,
)
from daemon.contract.faults.fault_codes import Code, FaultCode
from daemon.contract.faults.secrets import censored
from daemon.contract.faults.text import printable, printable_lines, small_print

_FULL_STOP = re.compile(r"(?<=[\w)\]}'\"`])\.+[ \t]*\Z")
"""At the end of a text; the dots of a path are none."""


class Fault(BaseModel):
    """What failed, where, why, and what a person can do about it."""

    model_config = ConfigDict(frozen=True)

    code: Annotated[Code, Field(union_mode="left_to_right"), WithJsonSchema({"type": "string"})]
    """Stable name for programs. What an old journal or another package says is read as it is: a plain string where it is no FaultCode."""
    operation: str
    """What was being done, as a verb phrase: "merge the adapter"."""
    cause: str
    """Why it failed, without a trailing full stop."""
    remedy: str
    """What to do about it, as one imperative clause without a trailing full stop."""
    path: str | None = None
    details: str | None = None
    """A traceback or the end of a log: for the report's small print, never for the sentence."""

    @field_validator("operation", "cause", "remedy", "path", mode="before")
    @classmethod
    def _writable(cls, value: object) -> object:
        """Text without secrets that UTF-8 can hold: names of files and values of JSON may hold lone halves of surrogate pairs."""
        return censored(value[:_MOST_READ].encode("utf-8", "backslashreplace").decode()) if isinstance(value, str) else value

    @field_validator("details", mode="before")
    @classmethod
    def _harmless(cls, value: object) -> object:
        return small_print(value) if isinstance(value, str) else value

    @field_validator("operation", "cause", "remedy", mode="after")
    @classmethod
    def _visible(cls, value: str) -> str:
        """Words without characters that act on a terminal or turn the text around, which a file may bring into them."""
        if value.isprintable():
            return value
        return "".join(
            ascii(character)[1:-1] if unicodedata.category(character)[0] == "C" and character not in "\n\t" else character
            for character in value
        )

    @field_validator("cause", mode="after")
    @classmethod
    def _of_ours(cls, value: str) -> str:
        """A cause that tells nobody what to do: a library's advice about a file is its author's."""
        lists = "\n" in value.rstrip("\n")
        return bounded_list(value) if lists else shortened(without_advice(value), MOST_OF_TEXT)

    @field_validator("operation", "remedy", "path", mode="after")
    @classmethod
    def _bounded(cls, value: str | None, info: ValidationInfo) -> str | None:
        """Words of a length that somebody reads, whatever a file brought into them; a path as long as a system's may be."""
        if value is None or info.field_name == "path":
            return value and shortened(value, 4096)
        return whole_clauses(value, MOST_OF_TEXT) if info.field_name == "remedy" else shortened(value, 300)

    @field_validator("cause", "remedy", mode="after")
    @classmethod
    def _open_ended(cls, value: str) -> str:
        """Words that a sentence goes on after: what a library says often ends with a full stop of its own."""
        return _FULL_STOP.sub("", value)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """The fault with other values, which are looked through as those of a new one."""
        return self.model_validate({**self.model_dump(), **(update or {})})

    def sentence(self) -> str:
        """The fault as the one sentence that terminal, log and report show, of at most `MOST_OF_SENTENCE` characters.

        One with a list, which alone has line ends, is longer; what follows the list begins a line of its own.
        """
        operation, path, remedy = printable(self.operation), printable(self.path or ""), printable(self.remedy)
        if self.cause.endswith("\n"):
            return _joined(operation, path, printable_lines(self.cause), remedy)
        cause = f"{_ended(printable(self.cause))} "
        whole = _joined(operation, path, cause, remedy)
        if len(whole) <= MOST_OF_SENTENCE:
            return whole
        operation, path = shortened(operation, _MOST_OF_PART), shortened(path, _MOST_OF_PART)
        if self.path and (self.path in self.cause or self.path in first_clause(self.remedy)):
            path = ""  # once is enough
        room = MOST_OF_SENTENCE - len(_joined(operation, path, "", ""))
        needed = min(len(first_clause(remedy)), room - _LEAST_OF_CAUSE)
        remedy = whole_clauses(remedy, max(room // 2, room - len(cause), needed))
        return _joined(operation, path, f"{_ended(shortened(cause.rstrip(' .'), room - len(remedy) - 2))} ", remedy)


_MOST_READ = 1 << 16
"""Characters of a text that are looked at; the rest of a longer one would not be kept."""
_MOST_OF_PART = 160
"""Characters of what was done, and of the path, in a sentence that would be too long."""
_LEAST_OF_CAUSE = 90
"""Characters of a cause that a long command does not take from it."""


def _joined(operation: str, path: str, cause: str, remedy: str) -> str:
    where = f" ({path})" if path else ""
    return f"Could not {operation}{where}: {cause}Fix: {_ended(remedy)}"


def _ended(text: str) -> str:
    return text if text.endswith(("?", "!", "…", "...")) else f"{text}."


class CkptdError(Exception):
    """Base of all errors that ckptd raises on purpose."""

    def __init__(
        self, code: Code, operation: str, cause: str, remedy: str, *, path: str | Path | None = None, details: str | None = None
    ) -> None:
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
