"""One row of a data set as a text: what the model reads, which part of it the model is to say, and the label. Pure.

Called by `selection`. The names of the fields are those of trl, axolotl, LLaMA-Factory and the common data sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from daemon.contract.disk.data_files import EXPECTED

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
"""Names of roles in the form with `from` and `value` → those that templates know."""
_PAIRS = (
    ("prompt", "completion"), ("prompt", "response"), ("prompt", "chosen"), ("question", "answer"), ("query", "response"),
    ("source", "target"), ("input", "target"), ("document", "summary"), ("article", "highlights"), ("input", "output"), ("text", "target"),
    ("text", "summary"),
)  # fmt: skip
"""What the model is given, and what it is to say."""
_TEXTS = ("text", "content", "sentence", "prompt", "question", "document", "instruction", "input", "source")
_LABELS = ("label", "labels", "class", "label_text")


class RowRefused(ValueError):
    """Why a row is no text, as a clause."""


@dataclass(frozen=True)
class Turn:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Text:
    """One text."""

    text: str
    """What the model reads."""
    prompt: str | None = None
    """The beginning of `text` after which the model is to say `completion`; None where the row has no such part."""
    completion: str | None = None
    """What the row says that the model should say."""
    spans: tuple[tuple[int, int], ...] = ()
    """The characters of `text`, from and to, that the model is to say; in a conversation the assistant's."""
    label: str | None = None
    """What a classifier should choose: a name, or its number."""
    turns: tuple[Turn, ...] = field(default=(), compare=False)
    """The messages that it was made of; still to be rendered where there are some and `text` is empty."""
    question: str | None = None
    """The last question of a conversation, as it was asked."""
    whole: bool = True
    """False where `text` was cut."""

    @property
    def identity(self) -> str:
        """What makes it this one and no other: rows with the same prompt are the same text."""
        if self.turns:
            said = self.turns[:-1] if len(self.turns) > 1 and self.turns[-1].role == "assistant" else self.turns
            return "\n".join(turn.content for turn in said)
        return self.text if self.prompt is None else self.prompt

    def cut(self, characters: int) -> Text:
        """At most so many characters of it, up to the last space; what lay behind them is no longer marked."""
        if len(self.text) <= characters:
            return self
        kept = self.text[:characters]
        kept = kept[: kept.rfind(" ")] if " " in kept[characters // 2 :] else kept
        spans = tuple((start, min(end, len(kept))) for start, end in self.spans if start < len(kept))
        prompt = self.prompt if self.prompt is None or len(self.prompt) <= len(kept) else None
        return replace(self, text=kept, spans=spans, prompt=prompt, completion=self.completion if prompt is not None else None, whole=False)


def text_of(row: Any) -> Text:
    """Return the text in a row: an object with known fields, or a plain text. Raises RowRefused for another one."""
    if isinstance(row, str):
        return _plain(row, "the text")
    if not isinstance(row, Mapping):
        raise RowRefused(f"it is {_kind(row)}; {EXPECTED}")
    for name in ("messages", "conversations", "conversation", "chat"):
        if isinstance(row.get(name), Sequence) and not isinstance(row[name], str | bytes):
            return Text("", turns=_turns(row[name], name))
    if isinstance(row.get("translation"), Mapping):
        return _translation(row["translation"])
    if isinstance(row.get("instruction"), str) and isinstance(row.get("output"), str):
        asked = "\n\n".join(part for part in (row["instruction"], row.get("input")) if isinstance(part, str) and part.strip())
        return _pair(asked, row["output"], ("instruction", "output"))
    for names in _PAIRS:
        given, said = (row.get(name) for name in names)
        if given is None or said is None:
            continue
        if not isinstance(given, str) and isinstance(given, Sequence):
            return Text("", turns=(*_turns(given, names[0]), *_turns([said] if isinstance(said, Mapping) else said, names[1])))
        if isinstance(said, Sequence) and not isinstance(said, str | bytes):  # the whole conversation, or several answers
            said = said[-1] if said else ""
            said = said.get("content") if isinstance(said, Mapping) else said
        return _pair(given, said, names)
    only = next((field for field in _TEXTS if isinstance(row.get(field), str)), None)
    if only is None:
        keys = ", ".join(repr(str(key)[:40]) for key in list(row)[:6]) or "no field"
        raise RowRefused(f"it has {keys}; {EXPECTED}")
    return replace(_plain(row[only], f'"{only}"'), label=_label(row))


def _plain(value: str, what: str) -> Text:
    if not value.strip():
        raise RowRefused(f"{what} is empty")
    return Text(_sound(value))


def _pair(given: Any, said: Any, names: tuple[str, str]) -> Text:
    for name, value in zip(names, (given, said), strict=True):
        if not isinstance(value, str):
            raise RowRefused(f'"{name}" is {_kind(value)}; a text is expected')
    if not given.strip() or not said.strip():
        raise RowRefused(f'"{names[0] if not given.strip() else names[1]}" is empty')
    prompt, completion = _sound(given), _sound(said)
    turns = (Turn("user", prompt), Turn("assistant", completion)) if names in (("instruction", "output"),) else ()
    return Text(prompt + completion, prompt, completion, ((len(prompt), len(prompt) + len(completion)),), turns=turns)


def _translation(value: Mapping[str, Any]) -> Text:
    texts = [text for text in value.values() if isinstance(text, str) and text.strip()]
    if len(texts) < 2:
        raise RowRefused('"translation" holds fewer than two texts')
    return _pair(texts[0], texts[1], ("translation", "translation"))


def _turns(value: Any, name: str) -> tuple[Turn, ...]:
    if isinstance(value, str):
        return (Turn("assistant", _sound(value)),) if value.strip() else ()
    if not isinstance(value, Sequence):
        raise RowRefused(f'"{name}" is {_kind(value)}; a list of messages is expected')
    turns = []
    for message in value:
        role, content = (
            (message.get("role", message.get("from")), message.get("content", message.get("value")))
            if isinstance(message, Mapping)
            else (None, None)
        )
        if isinstance(content, Sequence) and not isinstance(content, str | bytes):  # the parts of a message with pictures
            content = "".join(part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))
        if not isinstance(role, str) or not isinstance(content, str):
            raise RowRefused(f'a message in "{name}" has no "role" and "content" (or "from" and "value") that are texts')
        turns.append(Turn(_ROLES.get(role, role), _sound(content)))
    if not any(turn.content.strip() for turn in turns):
        raise RowRefused(f'"{name}" holds no text')
    return tuple(turns)


def _label(row: Mapping[str, Any]) -> str | None:
    value = next((row[name] for name in _LABELS if row.get(name) is not None), None)
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _sound(text: str) -> str:
    """Return the text without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
