"""Text out of files and folders' names, for a terminal."""

from __future__ import annotations

import re

from rich import markup

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What moves a cursor, changes colours, or turns the direction of what follows: all controls but tabs and line ends."""


def plain(text: str) -> str:
    """The text as a terminal does nothing but show it."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def escape(text: str) -> str:
    """The same for what rich prints."""
    return markup.escape(plain(text))
