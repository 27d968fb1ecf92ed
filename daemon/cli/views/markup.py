"""The one way to the terminal: consoles, lines and error messages, and text out of files and names made harmless for them."""

from __future__ import annotations

import sys

from rich import markup
from rich.console import Console

from daemon.contract.text import printable, printable_lines

STATE_STYLE = {
    "succeeded": "green", "passed": "green", "running": "cyan", "partial": "yellow", "unverified": "yellow", "failed": "red",
    "waiting": "yellow", "paused": "yellow", "stopped": "yellow",
    "pending": "dim", "skipped": "dim", "superseded": "dim", "cancelled": "dim",
}  # fmt: skip
"""State of an export or a stage, or verdict of an artifact → its style."""


def terminal(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console that shows text as it is: no colours for numbers, no pictures for `:words:`."""
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)


def escape(text: str) -> str:
    """The text in one line, for what a console prints."""
    return _closed(markup.escape(printable(text)))


def escape_lines(text: str) -> str:
    """The same with its line ends, for a traceback."""
    return _closed(markup.escape(printable_lines(text)))


def _closed(text: str) -> str:
    """The text with an even number of backslashes at its end: an odd one would escape the tag that follows."""
    return text + "\\" * ((len(text) - len(text.rstrip("\\"))) % 2)


def styled(state: str) -> str:
    """A state in its colour, as rich markup."""
    style = STATE_STYLE.get(state)
    return f"[{style}]{state}[/{style}]" if style else escape(state)


def say(text: str) -> None:
    """Print one line, without markup."""
    print(printable(text), flush=True)


def say_lines(text: str) -> None:
    """Print a text that has several lines, without markup."""
    print(printable_lines(text), flush=True)


def say_error(text: str) -> None:
    """Print a message to stderr, without markup; it may have several lines."""
    print(printable_lines(text), file=sys.stderr, flush=True)
