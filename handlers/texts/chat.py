"""A conversation as a model's own chat template writes it, without transformers: the same sandbox of Jinja, the same variables.

Called by `rendering`. Templates come with models, so they are run in Jinja's sandbox. The date that some of them write is fixed: the same
data gives the same texts on every day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.contract.errors import CkptdError
from daemon.contract.values import Json
from handlers.models.files import read_json
from handlers.texts.rows import RowRefused, Turn

if TYPE_CHECKING:
    import jinja2

_OPERATION = "read the tokenizer's chat template"
_TODAY = datetime(2026, 1, 1)
LARGEST = 1 << 20
"""Characters of a template, and of what it writes."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ChatTemplate:
    """A compiled template and the special tokens that it knows."""

    template: jinja2.Template
    tokens: Json

    def render(self, turns: Sequence[Turn], *, answer: bool = False) -> str:
        """The conversation as text; `answer`: with the beginning of the assistant's next turn. RowRefused where the template refuses."""
        return self.write({"messages": [{"role": turn.role, "content": turn.content} for turn in turns]}, answer=answer)

    def write(self, variables: Mapping[str, object], *, answer: bool = False) -> str:
        """The text of a conversation with whatever else templates know of one: tools, documents. RowRefused as `render`."""
        parts, length = [], 0
        try:
            for part in self.template.generate(**{**self.tokens, **variables}, add_generation_prompt=answer):
                parts.append(part)
                length += len(part)
                if length > LARGEST:
                    raise RowRefused(f"the chat template writes more than {LARGEST:,} characters")
        except RowRefused:
            raise
        except Exception as error:  # a template is a program of somebody else's
            lines = str(error).strip().splitlines()
            said = f": {lines[0][:160]}" if lines else ""
            raise RowRefused(f"the model's chat template does not take it ({type(error).__name__}{said})") from None
        return "".join(parts)


def read(folders: Sequence[Path], tokenizer: Path) -> ChatTemplate | None:
    """The template of the first folder that has one, with the special tokens of the folder `tokenizer`; None where none of them has one
    that Jinja can read."""
    sources = (_source(folder, _json(folder / "tokenizer_config.json")) for folder in folders)
    source = next((source for source in sources if source), None)
    if source is None or len(source) > LARGEST:
        return None
    tokens = {**_tokens(_json(tokenizer / "special_tokens_map.json")), **_tokens(_json(tokenizer / "tokenizer_config.json"))}
    try:
        return compiled(source, tokens)
    except RowRefused:
        return None


def compiled(source: str, tokens: Json) -> ChatTemplate:
    """A template with the special tokens that it knows. RowRefused where Jinja can't read it."""
    try:
        return ChatTemplate(_environment().from_string(source), tokens)
    except Exception as error:  # what the parser raises about somebody else's program
        raise RowRefused(f"the model's chat template can't be read ({type(error).__name__})") from None


def _json(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        value = read_json(path, _OPERATION)
    except CkptdError:
        return {}
    return value if isinstance(value, dict) else {}


def _source(folder: Path, config: Json) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(LARGEST + 1)
    found = _json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(found, list):  # several by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _tokens(config: Json) -> dict[str, str]:
    """Name → special token, as a text or as the object that describes it."""
    found = {}
    for name in _SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            found[name] = value
    return found


def _environment() -> jinja2.Environment:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}`, with which templates mark what the assistant says; it is written as it is."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _TODAY.strftime
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise RowRefused(f"the model's chat template does not take it: {str(message)[:200]}")
