"""Recorded sentences in the reader's language: journal, log and JSON have them in English, and they are translated when they are shown.

The text is all that is left then: `reading.py` finds out of which templates of `zh_CN/LC_MESSAGES/recorded.po` it was made. What no
template makes, such as a library's own words, stays as it is.
"""

from __future__ import annotations

import functools

from daemon.contract.language.catalog import language
from daemon.contract.language.reading import Work
from daemon.contract.language.templates import templates

MOST_READ = 4000
"""Characters of a line that is translated; a longer one stays as it is."""
JOINED = (
    "Could not {operation}: {cause}. Fix: {remedy}.", "Could not {operation} ({path}): {cause}. Fix: {remedy}.",
    "Could not {operation}: {cause}.", "Could not {operation} ({path}): {cause}.", "Fix: {remedy}.",
)  # fmt: skip
"""How `Fault.sentence` joins its parts: in a line, and where the cause is a list, before it and behind it."""


def translated_text(text: str) -> str:
    """A recorded sentence, or several in lines, in the reader's language."""
    return text if language() == "en" or not text else "\n".join(_of_line(line) for line in text.split("\n"))


def fault_sentence(operation: str, path: str, cause: str, remedy: str) -> str:
    """The sentence of a fault in Chinese, of its parts, none of which is shortened. One with a list has lines, as `Fault.sentence` has."""
    if not cause.endswith("\n"):
        return Work().fault(operation, path, cause, remedy)
    head, *listed = cause.rstrip("\n").split("\n")
    return "\n".join([Work().fault(operation, path, head, None), *map(_of_line, listed), _of_line(f"Fix: {remedy}.")])


def _of_line(line: str) -> str:
    text = line.strip()
    if not text or len(line) > MOST_READ:
        return line
    inner = _of_text(text)
    return line if inner is None else f"{line[: len(line) - len(line.lstrip())]}{inner}{line[len(line.rstrip()) :]}"


@functools.lru_cache(maxsize=1024)
def _of_text(text: str) -> str | None:
    return Work().translation(text) if " " in text else templates().words.get(("alone", text))
