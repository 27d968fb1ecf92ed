"""Text out of files and names, and times, for a terminal or a sentence.

Called wherever a text that others wrote is shown: by the sentence of a fault, the terminal's output and the readable log.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from datetime import datetime
from typing import Literal

from daemon.contract.faults.secrets import censored

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""What moves a cursor, changes colours, ends a line, or turns the direction of what follows: all but tabs and plain line ends."""
_IN_LINES = re.compile(f"[{_CONTROLS}]")
_IN_A_LINE = re.compile(f"[{_CONTROLS}\t\n]")


def printable(text: str) -> str:
    """The text in one line that a terminal does nothing but show: a control is shown as its code."""
    return _IN_A_LINE.sub(_code, censored(text))


def printable_lines(text: str) -> str:
    """The same with tabs and line ends as they are, for texts that have several lines."""
    return _IN_LINES.sub(_code, censored(text))


MOST_OF_SMALL_PRINT = 1 << 16
"""Characters of what a library or a log says that are kept beside a message."""
_MOST_READ = 1 << 20
_ROOM_OF_NOTE = 100
"""Of the line that says how much is left out: with it the text is short enough to stay as it is when it is read again."""


def small_print(text: str) -> str:
    """A traceback or the end of a log as it is kept and shown: as `printable_lines`, and of a long one the beginning and the end."""
    if (left_out := len(text) - 2 * _MOST_READ) > 0:
        text = text[:_MOST_READ] + text[-_MOST_READ:]
    text, half = printable_lines(text), (MOST_OF_SMALL_PRINT - _ROOM_OF_NOTE) // 2
    if len(text) <= MOST_OF_SMALL_PRINT:
        return text
    return f"{text[:half]}\n[… {max(0, left_out) + len(text) - 2 * half:,} more characters …]\n{text[-half:]}"


def one_line(text: str) -> str:
    """A sentence with an indented list in it, such as a fault's about several mistakes, as one line: the items stand between semicolons."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    said = lines[:1]
    for above, line in itertools.pairwise(lines):
        said.append((" " if above.endswith((":", ".")) else "; " if line[0].isspace() else ". ") + line.strip())
    return "".join(said)


def is_text(name: str) -> bool:
    """Whether a path can be written into a journal and a report: Python marks bytes that it can't decode as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _code(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def local_time(at: str | None, to_the: Literal["minute", "seconds"] = "minute") -> str:
    """A time of the journal or the log on the reader's clock, with its date and zone; as it is where it is none."""
    with contextlib.suppress(ValueError, OverflowError):
        clock = "%H:%M" if to_the == "minute" else "%H:%M:%S"
        return datetime.fromisoformat(str(at)).astimezone().strftime(f"%Y-%m-%d {clock} %Z")
    return str(at)
