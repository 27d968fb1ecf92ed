"""Recorded sentences in the reader's language: journal, log and JSON have them in English, and they are translated when they are shown.

The text is all that is left then, so it is matched against the templates of which the source makes such sentences, which
`zh_CN/LC_MESSAGES/recorded.po` has: what stands in the places of their placeholders goes into the translation, itself translated where it
is made of a template too. What no template makes, such as a library's own words, stays as it is.
"""

from __future__ import annotations

import functools
import re

from daemon.contract.language.catalog import language
from daemon.contract.language.templates import Template, joints_of, match_of, templates, values_of

MOST_READ = 4000
"""Characters of a line that is translated; a longer one stays as it is."""
_DEEPEST = 6
"""Templates within each other."""
_MOST_PIECES = 24
"""Pieces that a text is cut into at one kind of joint."""
_MOST_NAMES = 3
"""Names with a colon that a sentence is looked for behind."""
MOST_PARTS = 300
"""Parts of a text, of their parts and so on, that are looked at."""
_HAN = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
_FIX = " Fix: "
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


def template_of(text: str) -> tuple[str, tuple[str, ...]] | None:
    """The template that makes the text, and the values in its places; None where none does."""
    if text in templates().exact:
        return text, ()
    match = match_of(text)
    return (match[0].english, match[1]) if match else None


def _of_line(line: str) -> str:
    text = line.strip()
    if not text or len(line) > MOST_READ:
        return line
    inner = _of_text(text)
    return line if inner is None else f"{line[: len(line) - len(line.lstrip())]}{inner}{line[len(line.rstrip()) :]}"


@functools.lru_cache(maxsize=1024)
def _of_text(text: str) -> str | None:
    return Work().translation(text, 0) if " " in text else templates().words.get(("alone", text))


def _put(said: str, more: str) -> str:
    """Both, without a blank between two Chinese texts."""
    if more[:1] == " " and _HAN.match(said[-1:]) and _HAN.match(more.lstrip()[:1]):
        return said + more.lstrip()
    if said[-1:] == " " and _HAN.match(more[:1]) and _HAN.match(said.rstrip()[-1:]):
        return said.rstrip() + more
    return said + more


class Work:
    """The translation of one text: every part of it is looked at once, and only so many are."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    @property
    def parts(self) -> int:
        """How many were looked at."""
        return len(self._known)

    def translation(self, text: str, depth: int) -> str | None:
        """The text in Chinese; None where nothing of it is made of a template."""
        if " " not in text:
            return None
        if text not in self._known:
            if depth > _DEEPEST or len(self._known) > MOST_PARTS:
                return None
            self._known[text] = None
            self._known[text] = self._whole(text, depth + 1)
        return self._known[text]

    def _whole(self, text: str, depth: int) -> str | None:
        whole = templates().exact.get(text)
        if whole is not None and "{" not in whole:
            return whole
        if text.startswith("Could not ") and (_FIX in text or text.endswith((":", "."))):
            return self._fault(text, depth)
        match = match_of(text)
        if match and not match[0].is_weak():
            return self._filled(*match, depth)
        if (said := self._with_tail(text, depth)) is not None:
            return said
        if match and all(" " not in value or self._value(name, value, depth) for name, value in zip(match[0].names, match[1], strict=True)):
            return self._filled(*match, depth)
        if text.endswith(".") and (inner := self.translation(text[:-1], depth)) is not None:
            return f"{inner}。"
        if (said := self._pieces(text, depth)) is not None:
            return said
        match = match_of(text, loose=True)
        return self._filled(*match, depth) if match and not match[0].is_weak() else None

    def _filled(self, template: Template, values: tuple[str, ...], depth: int) -> str:
        """The translation with the values. Values without anything between them are one text, in the place of the last."""
        by_name: dict[str, str] = {}
        run = ""
        for place, name in enumerate(template.names):
            run += values[place]
            adjacent = place + 1 < len(template.names) and not template.literals[place + 1]
            by_name[name], run = ("", run) if adjacent else (run, "")
        said = ""
        for literal, placeholder in template.chinese:
            said = _put(said, literal)
            if placeholder is not None:
                value = by_name.get(placeholder, "")
                inner = self._value(placeholder, value, depth)
                said = said + value if inner is None else _put(said, inner)
        return said

    def _value(self, placeholder: str, value: str, depth: int) -> str | None:
        """A value in its place, with its blanks: some are fragments of sentences, which begin with one."""
        inner = templates().words.get((placeholder.rstrip("0123456789"), value)) or self.translation(value, depth)
        return self.translation(value.strip(), depth) if inner is None and value != value.strip() else inner

    def _fault(self, text: str, depth: int) -> str:
        """A sentence of `Fault.sentence`: the path is what stands in brackets behind an operation, before the first colon behind one."""
        head, fix, remedy = text.removeprefix("Could not ").rpartition(_FIX) if _FIX in text else (text[len("Could not ") :], "", "")
        places = [place for place, _ in joints_of(head, ": ")][:_MOST_PIECES] or [len(head)]
        for place in places:
            operation, bracket, path = head[:place].partition(" (")
            if path.endswith(")") and self._operation(operation, depth):
                break
            if self._operation(head[:place], depth):
                operation, bracket, path = head[:place], "", ""
                break
        else:
            place = places[0]
            operation, bracket, path = head[:place].partition(" (") if head[:place].endswith(")") else (head[:place], "", "")
        return self.fault(operation, path.removesuffix(")") if bracket else "", head[place + 2 :], remedy if fix else None, depth)

    def fault(self, operation: str, path: str, cause: str, remedy: str | None, depth: int = 0) -> str:
        """The sentence of these parts; without a remedy what stands before a list, or before a cause that is one."""
        form = templates().exact[f"Could not {{operation}}{' ({path})' if path else ''}: {{cause}}.{' Fix: {remedy}.' if remedy else ''}"]
        clauses = {name: self._clause(part.removesuffix("."), depth) for name, part in (("cause", cause), ("remedy", remedy or ""))}
        said = form.format(operation=self._operation(operation, depth) or self._clause(operation, depth), path=path, **clauses)
        return said.removesuffix("。") if cause.endswith(":") else said

    def _operation(self, text: str, depth: int) -> str | None:
        """What was done, where it is one of the templates itself, and not only made of parts that are."""
        word = templates().words.get(("operation", text))
        return word or (self.translation(text, depth) if self._is_known(text) else None)

    @staticmethod
    def _is_known(text: str) -> bool:
        """Whether a text is one of the templates, and surely so."""
        match = None if text in templates().exact else match_of(text)
        return text in templates().exact or (match is not None and not match[0].is_weak())

    def _clause(self, text: str, depth: int) -> str:
        known = self.translation(text, depth)
        return text if known is None else known

    def _with_tail(self, text: str, depth: int) -> str | None:
        """A text with such a fragment at its end as follows others."""
        for template in templates().tails:
            first = template.literals[0]
            place = text.find(first, 1) if text.endswith(template.literals[-1]) else -1
            for _ in range(_MOST_PIECES):
                if place < 0:
                    break
                if (values := values_of(template, text[place:], text[place:])) is not None:
                    head = self.translation(text[:place], depth)
                    return _put(text[:place] if head is None else head, self._filled(template, values, depth))
                place = text.find(first, place + 1)
        return None

    def _pieces(self, text: str, depth: int) -> str | None:
        """A text that several sentences were joined to, each piece by itself; None where none of them is known."""
        for begin, end in joints_of(text, ": ")[:_MOST_NAMES]:
            if self._is_known(text[end:]):  # a name before a sentence
                return f"{self._clause(text[:begin], depth)}：{self._clause(text[end:], depth)}"
        for joint, chinese in _JOINTS:
            cuts = joints_of(text, joint)[: _MOST_PIECES if joint != ": " else _MOST_NAMES]
            if not cuts:
                continue
            edges = [0, *(end for _, end in cuts)]
            pieces = [text[begin:end] for begin, end in zip(edges, [*(begin for begin, _ in cuts), len(text)], strict=True)]
            known = [self.translation(piece, depth) for piece in pieces]
            if any(piece is not None for piece in known):
                return chinese.join(piece if new is None else new for piece, new in zip(pieces, known, strict=True))
        if text.endswith(")") and (cuts := joints_of(text, " (")):
            head, tail = text[: cuts[-1][0]], text[cuts[-1][1] : -1]
            known = [self.translation(head, depth), self.translation(tail, depth)]
            if known != [None, None]:
                return f"{known[0] or head}（{known[1] or tail}）"
        return None


_JOINTS = ((". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"))
"""Between sentences, what joins them in English and in Chinese."""
