"""Chat templates: where a folder has them, and whether two of them write the same of every conversation that is tried.

Called when the files of an artifact are compared with the checkpoint's. Templates that are not equal are both filled in by the sandbox of
`handlers.texts.chat`, so that one that was only written otherwise passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from handlers.texts import chat
from handlers.texts.rows import RowRefused
from handlers.validate.files import probes
from handlers.validate.files.reading import values

JINJA, CONFIG, OLDER, MORE = "chat_template.jinja", "tokenizer_config.json", "chat_template.json", "additional_chat_templates"
_USUAL, _SHOWN = "default", 120


@dataclass(frozen=True)
class Templates:
    """What a folder has."""

    places: dict[str, str] = field(default_factory=dict)
    """File → the usual template in it, in the order in which loaders take them."""
    named: dict[str, str] = field(default_factory=dict)
    """Name → template with a name of its own."""

    @property
    def texts(self) -> list[str]:
        """The usual templates."""
        return list(dict.fromkeys(self.places.values()))


def read(folder: Path) -> Templates:
    """Give the chat templates in a folder's files."""
    places, named = dict[str, str](), dict[str, str]()
    if (folder / JINJA).is_file():
        places[JINJA] = (folder / JINJA).read_text(encoding="utf-8", errors="replace")
    for name in (OLDER, CONFIG):
        template = values(folder / name).get("chat_template")
        table = {_USUAL: template} if isinstance(template, str) else _table(template)
        named |= {key: text for key, text in table.items() if key != _USUAL}
        if _USUAL in table:
            places[name] = table[_USUAL]
    named |= {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in sorted((folder / MORE).glob("*.jinja"))}
    return Templates(places, named)


def names(folder: Path) -> dict[str, str]:
    """Give the texts of the special tokens that a template knows."""
    texts: dict[str, str] = {}
    for name in ("special_tokens_map.json", CONFIG):
        for key, value in values(folder / name).items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                texts[key] = content
    return texts


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
    place = next(
        (at for at, pair in enumerate(zip(text, other or "", strict=False)) if pair[0] != pair[1]), min(len(text), len(other or ""))
    )
    return repr(text[max(0, place - 30) : place + _SHOWN - 30])


def _table(value: object) -> dict[str, str]:
    rows = value if isinstance(value, list) else []
    return {row["name"]: row["template"] for row in rows if isinstance(row, dict) and {"name", "template"} <= row.keys()}
