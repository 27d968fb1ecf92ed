"""A conversation as a model's own chat template writes it, without transformers: the same sandbox of Jinja, the same variables.

Called by `rendering`. Templates come with models, so they are run in Jinja's sandbox, and in a process of their own with an end to the
time and the memory that they may take (`template_program`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.errors import CkptdError
from daemon.contract.values import Json
from handlers.child.bounded import BoundedProcess, TooMuch
from handlers.models.files import read_json
from handlers.texts.rows import RowRefused, Turn

_OPERATION = "read the tokenizer's chat template"
LARGEST = 1 << 20
"""Characters of a template."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


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
    """Return a template with the special tokens that it knows. RowRefused where Jinja can't read it."""
    _filled(source, None)
    return ChatTemplate(source, tokens)


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
    source = _json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(source, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _tokens(config: Json) -> dict[str, str]:
    """Name → special token, as a text or as the object that describes it."""
    tokens = {}
    for name in _SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens
