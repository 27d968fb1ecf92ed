"""A conversation as a model's own chat template writes it, without transformers: the same sandbox of Jinja, the same variables.

Called by `rendering`. Templates come with models, so they are run in Jinja's sandbox, and in a process of their own with an end to the
time and the memory that they may take (`template_program`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.values import Json
from handlers.child.bounded import BoundedProcess, TooMuch
from handlers.texts.reading import values
from handlers.texts.rows import RowRefused, Turn

LARGEST = 1 << 20
"""Characters of a template."""
JINJA, CONFIG, OLDER, MORE = "chat_template.jinja", "tokenizer_config.json", "chat_template.json", "additional_chat_templates"
_USUAL = "default"
_PROCESS = BoundedProcess("handlers.texts.template_program", cpu_seconds=5, memory=1 << 30)
_TOO_MUCH: dict[str, str] = {}
"""Templates that took too much → why: none is tried a second time."""


@dataclass(frozen=True)
class ChatTemplate:
    """A template and the special tokens that it knows."""

    source: str
    tokens: Json

    def render(self, turns: Sequence[Turn], *, answer: bool = False) -> str:
        """The conversation as text; `answer`: with the beginning of the assistant's next turn. RowRefused where the template refuses."""
        return self.write({"messages": [{"role": turn.role, "content": turn.content} for turn in turns]}, answer=answer)

    def write(self, variables: Mapping[str, object], *, answer: bool = False) -> str:
        """Return the text of a conversation with whatever else templates know of one: tools, documents. RowRefused as `render`."""
        return _filled(self.source, {**self.tokens, **variables, "add_generation_prompt": answer})


def _filled(source: str, variables: Mapping[str, object] | None) -> str:
    """Return what a template writes; "" where it is only read. RowRefused where it can't be, or takes too much time or memory."""
    if source in _TOO_MUCH:
        raise RowRefused(_TOO_MUCH[source])
    try:
        said = _PROCESS.ask({"template": source, "variables": variables})
    except TooMuch as error:
        _TOO_MUCH[source] = f"the model's chat template {error}"
        raise RowRefused(_TOO_MUCH[source]) from None
    if "refused" in said:
        raise RowRefused(said["refused"])
    return str(said["text"])


@dataclass(frozen=True)
class Templates:
    """The templates that a folder's files have."""

    places: dict[str, str] = field(default_factory=dict)
    """File → the usual template in it, in the order in which loaders take them."""
    named: dict[str, str] = field(default_factory=dict)
    """Name → template with a name of its own."""

    @property
    def texts(self) -> list[str]:
        """The usual templates."""
        return list(dict.fromkeys(self.places.values()))


def templates_in(folder: Path) -> Templates:
    """Return the chat templates in a folder's files, each up to a little more than LARGEST characters where it has a file of its own."""
    places, named = dict[str, str](), dict[str, str]()
    if (folder / JINJA).is_file():
        places[JINJA] = _read(folder / JINJA)
    for name in (OLDER, CONFIG):
        template = values(folder / name).get("chat_template")
        table = {_USUAL: template} if isinstance(template, str) else _table(template)
        named |= {key: text for key, text in table.items() if key != _USUAL}
        if _USUAL in table:
            places[name] = table[_USUAL]
    named |= {path.stem: _read(path) for path in sorted((folder / MORE).glob("*.jinja"))}
    return Templates(places, named)


def special_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of the special tokens that a template knows, by the names under which it knows them."""
    texts: dict[str, str] = {}
    for name in ("special_tokens_map.json", CONFIG):
        for key, value in values(folder / name).items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                texts[key] = content
    return texts


def read(folders: Sequence[Path], tokenizer: Path) -> ChatTemplate | None:
    """The template of the first folder that has one, with the special tokens of the folder `tokenizer`; None where none of them has one
    that Jinja can read."""
    source = next((text for folder in folders for text in templates_in(folder).texts if text), None)
    if source is None or len(source) > LARGEST:
        return None
    try:
        return compiled(source, special_tokens(tokenizer))
    except RowRefused:
        return None


def compiled(source: str, tokens: Json) -> ChatTemplate:
    """Return a template with the special tokens that it knows. RowRefused where Jinja can't read it."""
    _filled(source, None)
    return ChatTemplate(source, tokens)


def _read(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.read(LARGEST + 1)


def _table(value: object) -> dict[str, str]:
    """Return name → template of a list of several."""
    rows = value if isinstance(value, list) else []
    named = {row.get("name"): row.get("template") for row in rows if isinstance(row, dict)}
    return {name: text for name, text in named.items() if isinstance(name, str) and isinstance(text, str)}
