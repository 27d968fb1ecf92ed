"""Text out of files and names, for a terminal or a sentence. Pure.

Called wherever a text that others wrote is shown: by the sentence of a fault, the terminal's output and the readable log.
"""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""What moves a cursor, changes colours, ends a line, or turns the direction of what follows: all but tabs and plain line ends."""
_IN_LINES = re.compile(f"[{_CONTROLS}]")
_IN_A_LINE = re.compile(f"[{_CONTROLS}\t\n]")


def printable(text: str) -> str:
    """The text in one line that a terminal does nothing but show: a control is shown as its code."""
    return _IN_A_LINE.sub(_code, text)


def printable_lines(text: str) -> str:
    """The same with tabs and line ends as they are, for texts that have several lines."""
    return _IN_LINES.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
