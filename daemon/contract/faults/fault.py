"""An error as data: it crosses the process boundary, lies in the journal and ends in the log, the terminal and the report."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
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
from daemon.contract.faults.fault_codes import Code
from daemon.contract.faults.secrets import censored
from daemon.contract.faults.text import printable, printable_lines, small_print

_FULL_STOP = re.compile(r"(?<=[\w)\]}'\"`])\.+[ \t]*\Z")
"""At the end of a text; the dots of a path are none."""


class Fault(BaseModel):
    """What failed, where, why, and what a person can do about it."""

    model_config = ConfigDict(frozen=True)  # built at once: whoever has no handle or memory left could not do it when he needs it

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
