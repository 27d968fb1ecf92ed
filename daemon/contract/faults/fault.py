"""An error as data: it crosses the process boundary, lies in the journal and ends in the log, the terminal and the report."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated, Any, ClassVar

from daemon.contract.faults.advice import (
    MOST_OF_SENTENCE,
    MOST_OF_TEXT,
    bounded_list,
    first_clause,
    shortened,
    whole_clauses,
    without_advice,
)
from daemon.contract.faults.fault_codes import Code, code_of
from daemon.contract.faults.secrets import censored
from daemon.contract.faults.text import printable, printable_lines, small_print
from daemon.contract.records import Record, ShownAs

_FULL_STOP = re.compile(r"(?<=[\w)\]}'\"`])\.+[ \t]*\Z")
"""At the end of a text; the dots of a path are none."""


class Fault(Record):
    """What failed, where, why, and what a person can do about it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore"}

    code: Annotated[Code, ShownAs("string")]
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

    @staticmethod
    def prepared(values: dict[str, Any]) -> dict[str, Any]:
        """Text that UTF-8 can hold: names of files and values of JSON may hold lone halves of surrogate pairs."""
        texts = {
            name: small_print(value) if name == "details" else _writable(value) for name, value in values.items() if isinstance(value, str)
        }
        return {**values, **texts}

    def __post_init__(self) -> None:
        cause, remedy = _visible(self.cause), _visible(self.remedy)
        lists = "\n" in cause.rstrip("\n")
        # A cause tells nobody what to do: a library's advice about a file is its author's. Words that a sentence goes on after end without
        # a full stop, and all have a length that somebody reads, whatever a file brought into them; a path is as long as a system's may be.
        fields = self.__dict__
        fields["code"] = code_of(self.code)
        fields["operation"] = shortened(_visible(self.operation), 300)
        fields["cause"] = _FULL_STOP.sub("", bounded_list(cause) if lists else shortened(without_advice(cause), MOST_OF_TEXT))
        fields["remedy"] = _FULL_STOP.sub("", whole_clauses(remedy, MOST_OF_TEXT))
        fields["path"] = self.path and shortened(censored(self.path[:_MOST_READ]), 4096)
        fields["details"] = None if self.details is None else small_print(self.details)

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


def _writable(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _visible(value: str) -> str:
    """Words without secrets, and without characters that act on a terminal or turn the text around, which a file may bring into them."""
    value = censored(value[:_MOST_READ])
    if value.isprintable():
        return value
    return "".join(
        ascii(character)[1:-1] if unicodedata.category(character)[0] == "C" and character not in "\n\t" else character
        for character in value
    )


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
