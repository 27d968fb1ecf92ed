"""Whether an Ollama Modelfile says what the checkpoint says: file, stops, context, settings of sampling, chat template. Pure.

Instructions: https://github.com/ollama/ollama/blob/main/docs/modelfile.md. Of Go's template language as much is read as turns of a
conversation need; a template that uses more of it is told and not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.values import Json
from handlers.texts import chat
from handlers.texts.rows import RowRefused

NAME = "Modelfile"
SEARCH = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repeat_penalty": "repetition_penalty"}
"""Parameter of Ollama's → setting of generation_config.json."""
USUAL = 2048
"""Tokens of context below which none is needed."""
_PLAIN = ".Prompt"
TURNS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "How are you?"),),
    (("system", "Be short."), ("user", "Hi, you!")),
    (("user", "One"), ("assistant", "two"), ("user", "<b>3</b>"), ("assistant", "four"), ("user", "five, six")),
)
"""Conversations that templates write: one turn, a system message, many turns."""


class UnreadError(Exception):
    """What is used of Go's template language and not read here."""


@dataclass
class Modelfile:
    """Its instructions."""

    sources: list[tuple[str, str]] = field(default_factory=list)
    """(FROM or ADAPTER, path)"""
    parameters: list[tuple[str, str]] = field(default_factory=list)
    template: str | None = None
    messages: list[str] = field(default_factory=list)
    """Instructions that put texts of their own before a conversation."""


def read(text: str) -> Modelfile:
    """Give the instructions in a Modelfile."""
    modelfile = Modelfile()
    pattern = r'^(\w+)[ \t]+("""(?P<long>.*?)"""|(?P<short>[^\n]*))'
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        word, value = match[1].upper(), match["long"] if match["long"] is not None else match["short"].strip()
        if word in ("FROM", "ADAPTER"):
            modelfile.sources.append((word, value))
        elif word == "PARAMETER":
            name, _, said = value.partition(" ")
            modelfile.parameters.append((name, _unquoted(said.strip())))
        elif word == "TEMPLATE":
            modelfile.template = value
        elif word in ("SYSTEM", "MESSAGE"):
            modelfile.messages.append(word)
    return modelfile


def _unquoted(said: str) -> str:
    if said[:1] == '"':
        try:
            return str(json.loads(said))
        except ValueError:
            return said.strip('"')
    return said


def difference(
    modelfile: Modelfile, folder: Path, *, ends: Collection[str], specials: Collection[str], lengths: Collection[int], generation: Json
) -> str | None:
    """Give what a Modelfile says otherwise than the checkpoint, but for its template, as a clause; None where nothing is.

    `ends`: texts of the tokens that end a text; `specials`: of all special tokens; `lengths`: positions that the
    model knows, and of its window.
    """
    for word, path in modelfile.sources:
        over_a_base = word == "FROM" and any(other == "ADAPTER" for other, _ in modelfile.sources)
        if not over_a_base and not (folder / path).is_file():
            return f"{word} names {path!r}, and no such file lies beside it"
    if modelfile.messages:
        return f"{modelfile.messages[0]} puts a text before each conversation, which the checkpoint does not"
    stops = [value for name, value in modelfile.parameters if name == "stop"]
    if odd := [stop for stop in stops if stop not in ends and stop not in specials]:
        return f"stop is {odd[0]!r}, which is no token that ends a text"
    if stops and (lost := [end for end in ends if end not in stops]):
        return f"stop lacks {lost[0]!r}, at which the checkpoint's texts end"
    for name, value in modelfile.parameters:
        if name == "num_ctx" and lengths and not (value.isdigit() and min(*lengths, USUAL) <= int(value) <= max(lengths)):
            return f"num_ctx is {value}, and the model knows {max(lengths)} positions"
        wanted = generation.get(SEARCH.get(name, ""))
        if name in SEARCH and not _same(value, wanted):
            return f"{name} is {value} instead of {'what Ollama takes' if wanted is None else wanted}"
    return None


def _same(value: str, wanted: Any) -> bool:
    try:
        return wanted is not None and abs(float(value) - float(wanted)) < 1e-6
    except ValueError:
        return False


def template_difference(template: str, wanted: str | None, names: dict[str, str]) -> str | None:
    """Give what a template of Ollama's writes otherwise than the checkpoint's (None: it has none), as a clause. Raises UnreadError."""
    if wanted is None:
        return None if _tokens(template) == [("do", _PLAIN)] else "changes a prompt, and the checkpoint has no chat template"
    for turns in TURNS:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            theirs = chat.compiled(wanted, names).write({"messages": messages, "tools": None, "documents": None}, answer=True)
        except RowRefused:
            continue
        mine = written(template, turns)
        if mine not in (theirs, theirs.removeprefix(names.get("bos_token", ""))):  # what begins a text is put there by llama.cpp
            return f"writes {mine[:160]!r} instead of {theirs[:160]!r}"
    return None


def written(template: str, turns: Sequence[tuple[str, str]]) -> str:
    """Give what a template of Ollama's writes of a conversation. Raises UnreadError."""
    tokens = _tokens(template)
    text, at = _block(tokens, 0, turns, None)
    if at < len(tokens):
        raise UnreadError("an end without a beginning")
    return text


def _tokens(template: str) -> list[tuple[str, str]]:
    """Give ("text" or "do", what) in order; marks of trimming are followed."""
    tokens, at = list[tuple[str, str]](), 0
    for match in re.finditer(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", template, re.DOTALL):
        before = template[at : match.start()]
        tokens += [("text", before.rstrip() if match[1] else before), ("do", match[2])]
        at = match.end()
        if match[3]:
            at += len(template[at:]) - len(template[at:].lstrip())
    return [token for token in (*tokens, ("text", template[at:])) if token != ("text", "")]


def _block(tokens: list[tuple[str, str]], at: int, turns: Sequence[tuple[str, str]], turn: tuple[str, str] | None) -> tuple[str, int]:
    """Give the text up to what ends the block, and where that is."""
    text = ""
    while at < len(tokens):
        kind, what = tokens[at]
        if kind == "text":
            text, at = text + what, at + 1
        elif what == "end" or what.startswith("else"):
            return text, at
        elif what == "range .Messages":
            inner = [_block(tokens, at + 1, turns, pair) for pair in turns] or [("", _block(tokens, at + 1, turns, ("", ""))[1])]
            text, at = text + "".join(part for part, _ in inner), _ended(tokens, inner[-1][1])
        elif what.startswith("if "):
            part, at = _chosen(tokens, at, turns, turn)
            text += part
        elif what in (".Content", ".Role") and turn is not None:
            text, at = text + turn[what == ".Content"], at + 1
        else:
            raise UnreadError(what)
    return text, at


def _chosen(tokens: list[tuple[str, str]], at: int, turns: Sequence[tuple[str, str]], turn: tuple[str, str] | None) -> tuple[str, int]:
    """Give what the first branch writes that holds, from an `if` on."""
    text: str | None = None
    condition = tokens[at][1].removeprefix("if ")
    while True:
        part, at = _block(tokens, at + 1, turns, turn)
        if text is None and (not condition or _holds(condition, turn)):
            text = part
        word = tokens[at][1] if at < len(tokens) else ""
        if not word.startswith("else"):
            return text or "", _ended(tokens, at)
        condition = word.removeprefix("else").strip().removeprefix("if ").strip()


def _holds(condition: str, turn: tuple[str, str] | None) -> bool:
    match = re.fullmatch(r'eq \.Role "(\w+)"', condition)
    if match is None or turn is None:
        raise UnreadError(condition)
    return turn[0] == match[1]


def _ended(tokens: list[tuple[str, str]], at: int) -> int:
    if at >= len(tokens) or tokens[at] != ("do", "end"):
        raise UnreadError("a beginning without an end")
    return at + 1
