"""Whether two chat templates write the same of every conversation that is tried.

Called when the files of an artifact are compared with the checkpoint's. Templates that are not equal are both filled in by the sandbox of
`handlers.texts.chat`, so that one that was only written otherwise passes.
"""

from __future__ import annotations

from handlers.texts import chat
from handlers.texts.rows import RowRefused
from handlers.validate.engines.arrays import same_start
from handlers.validate.files import probes

_SHOWN = 120


def difference(template: str, wanted: str, tokens: dict[str, str]) -> str | None:
    """Give what one template writes otherwise than another, as a clause; None where they write the same."""
    if template == wanted:
        return None
    for asked in probes.CONVERSATIONS:
        for answer in (False, True):
            mine, theirs = (_written(side, asked, tokens, answer=answer) for side in (template, wanted))
            if mine != theirs:
                start = " with the beginning of an answer" if answer else ""
                return f"writes {_show(mine, theirs)} instead of {_show(theirs, mine)}{start}"
    return None


def _written(template: str, asked: dict[str, object], tokens: dict[str, str], *, answer: bool) -> str | None:
    """Give the text of a conversation; None where the template refuses it."""
    try:
        return chat.compiled(template, tokens).write({"tools": None, "documents": None, **asked}, answer=answer)
    except RowRefused:
        return None


def _show(text: str | None, other: str | None) -> str:
    """Give the part of a text where it begins to differ."""
    if text is None:
        return "nothing, since it refuses a conversation,"
    place = same_start(text, other or "")
    return repr(text[max(0, place - 30) : place + _SHOWN - 30])
