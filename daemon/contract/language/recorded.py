"""Recorded sentences in the reader's language: journal, log and JSON have them in English, and they are translated when they are shown.

The text is all that is left then, so it is matched against the templates of which the source makes such sentences, which
`zh_CN/LC_MESSAGES/recorded.po` has: what stands in the places of their placeholders goes into the translation, itself translated where it
is made of a template too. What no template makes, such as a library's own words, stays as it is.

No regular expression of a template is run: literals are looked for one after the other, so the time grows with length times templates.
"""

from __future__ import annotations

import functools
import re
import string
import struct
from collections.abc import Iterator
from typing import NamedTuple

from daemon.contract.language.catalog import FOLDER, language

MOST_READ = 4000
"""Characters of a line that is translated; a longer one stays as it is."""
_DEEPEST = 6
"""Templates within each other."""
_MOST_PIECES = 24
"""Pieces that a text is cut into at one kind of joint."""
_MOST_PARTS = 300
"""Parts of a text, of their parts and so on, that are looked at."""
_FEW = 12
"""Characters of a template that is no sure sign."""
_MOST_CUTS, _MOST_PLACES = 60, 4
"""Ways to cut a text by a template that are tried, and places of a literal."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
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


def template_of(text: str) -> tuple[str, tuple[str, ...]] | None:
    """The template that makes the text, and the values in its places; None where none does."""
    if text in _templates().exact:
        return text, ()
    match = _match(text)
    return (match[0].english, match[1]) if match else None


class _Template(NamedTuple):
    """A sentence with places for values."""

    english: str
    literals: tuple[str, ...]
    """What stands before, between and after the values."""
    names: tuple[str, ...]
    chinese: tuple[tuple[str, str | None], ...]
    """Pieces of the translation, each with the name of the value that follows."""

    def weight(self) -> int:
        """The heavier, the surer: what a text begins or ends with tells more than what is somewhere in it."""
        return sum(map(len, self.literals)) + 2 * (len(self.literals[0]) + len(self.literals[-1]))

    def is_weak(self) -> bool:
        """Whether it has so few words that they may as well be another text's."""
        return sum(map(len, self.literals)) < _FEW


class _Templates(NamedTuple):
    exact: dict[str, str]
    """English → Chinese, all of them."""
    words: dict[tuple[str, str], str]
    """The name of a placeholder, and a word that can stand in it → Chinese."""
    by_word: dict[str, list[_Template]]
    """Those that begin with a whole word, by it; the heaviest first."""
    others: list[_Template]
    tails: list[_Template]
    """Those that only follow other words: they begin with a blank or a comma."""


@functools.cache
def _templates() -> _Templates:
    exact, words = {}, {}
    for english, chinese in _read():
        place, mark, word = english.partition("\x04")  # between context and text, as gettext has it
        if mark:
            words[place, word] = chinese
        else:
            exact.update(_cut(english, chinese))
            exact[english] = chinese
    parsed = sorted((_parsed(english, chinese) for english, chinese in exact.items() if "{" in english), key=_Template.weight, reverse=True)
    by_word: dict[str, list[_Template]] = {}
    for template in parsed:
        by_word.setdefault(_first_word(template.literals[0]), []).append(template)
    tails = [_parsed(english, chinese) for english, chinese in exact.items() if english[:1] in " ,;("]
    return _Templates(exact, words, by_word, by_word.pop("", []), sorted(tails, key=_Template.weight, reverse=True))


def _read() -> Iterator[tuple[str, str]]:
    """The pairs of the compiled catalogue, as GNU gettext's manual describes the file ("The Format of GNU MO Files")."""
    data = (FOLDER / "zh_CN" / "LC_MESSAGES" / "recorded.mo").read_bytes()
    count, english, chinese = struct.unpack("<3I", data[8:20])
    for place in range(count):
        pair = []
        for table in (english, chinese):
            length, start = struct.unpack_from("<2I", data, table + 8 * place)
            pair.append(data[start : start + length].decode())
        if pair[0] and pair[1]:
            yield pair[0], pair[1]


def _cut(english: str, chinese: str) -> Iterator[tuple[str, str]]:
    """What a long sentence has of a text with several alternatives: the first of them."""
    ends = [place for place, _ in _joints(english, "; ")]
    ends_there = [match.start() for match in re.finditer("；", chinese)]
    if len(ends) == len(ends_there):
        yield from ((english[:end], chinese[:there]) for end, there in zip(ends, ends_there, strict=True) if " " in english[:end])


def _parsed(english: str, chinese: str) -> _Template:
    literals, names = [""], []
    for literal, name, _, _ in string.Formatter().parse(english):
        literals[-1] += literal  # a doubled brace ends a piece without a name
        if name is not None:
            names.append(name)
            literals.append("")
    return _Template(english, tuple(literals), tuple(names), tuple((text, name) for text, name, _, _ in string.Formatter().parse(chinese)))


def _first_word(text: str) -> str:
    word, blank, _ = text.partition(" ")
    return word if blank and word else ""


def _of_line(line: str) -> str:
    text = line.strip()
    if not text or len(line) > MOST_READ:
        return line
    inner = _of_text(text)
    return line if inner is None else f"{line[: len(line) - len(line.lstrip())]}{inner}{line[len(line.rstrip()) :]}"


@functools.lru_cache(maxsize=1024)
def _of_text(text: str) -> str | None:
    return _Work().translation(text, 0)


def _match(text: str) -> tuple[_Template, tuple[str, ...]] | None:
    templates = _templates()
    candidates = sorted(
        [
            template
            for template in (*templates.by_word.get(_first_word(text), ()), *templates.others)
            if text.startswith(template.literals[0]) and text.endswith(template.literals[-1]) and max(template.literals, key=len) in text
        ],
        key=_Template.weight,
        reverse=True,
    )
    hidden = _hidden(text)
    for template in candidates:
        values = _values(template, text, hidden) or _values(template, text, text)
        if values is not None:
            return template, values
    return None


def _values(template: _Template, text: str, hidden: str) -> tuple[str, ...] | None:
    """What stands in a template's places; of several ways to cut the text the first that leaves every bracket with its partner, if any does.

    `hidden`: the text with zeros for what is quoted, where no literal begins but one of quotes.
    """
    first, *inner, last = template.literals
    if not inner:
        return (text[len(first) : len(text) - len(last)],) if len(first) + len(last) <= len(text) else None
    body, left = len(text) - len(last), _MOST_CUTS
    simplest: tuple[str, ...] | None = None
    open_: list[tuple[int, tuple[str, ...]]] = [(len(first), ())]  # ways to go on: where, with the values before
    while open_ and left:
        left -= 1
        begin, values = open_.pop()
        if len(values) == len(inner):
            cut = (*values, text[begin:body])
            simplest = simplest or cut
            if all(map(_is_closed, cut)):
                return cut
            continue
        literal = inner[len(values)]
        places = []
        place = begin if not literal else _place(text, hidden, literal, begin, body)
        while place >= 0 and len(places) < _MOST_PLACES:
            places.append(place)
            place = _place(text, hidden, literal, place + 1, body) if literal else -1
        open_ += [(place + len(literal), (*values, text[begin:place])) for place in reversed(places)]
    return simplest


def _is_closed(value: str) -> bool:
    """Whether every bracket of a value has its partner in it."""
    deep = 0
    for character in value:
        deep += (character == "(") - (character == ")")
        if deep < 0:
            return False
    return not deep


def _hidden(text: str) -> str:
    """The text with zeros for what stands in quotation marks or backticks, which are left."""
    return _QUOTED.sub(lambda match: match[0][0] + "\0" * (len(match[0]) - 2) + match[0][-1], text)


def _place(text: str, hidden: str, literal: str, begin: int, end: int) -> int:
    """Where a literal is next, outside of what is quoted; -1 where it is no more."""
    place = text.find(literal, begin, end)
    while place >= 0 and hidden[place] != literal[0]:
        place = text.find(literal, place + 1, end)
    return place


def _put(said: str, more: str) -> str:
    """Both, without a blank between two Chinese texts."""
    if more[:1] == " " and _HAN.match(said[-1:]) and _HAN.match(more.lstrip()[:1]):
        return said + more.lstrip()
    if said[-1:] == " " and _HAN.match(more[:1]) and _HAN.match(said.rstrip()[-1:]):
        return said.rstrip() + more
    return said + more


class _Work:
    """The translation of one text: every part of it is looked at once, and only so many are."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def translation(self, text: str, depth: int) -> str | None:
        """The text in Chinese; None where nothing of it is made of a template."""
        if " " not in text:
            return None
        if text not in self._known:
            if depth > _DEEPEST or len(self._known) > _MOST_PARTS:
                return None
            self._known[text] = None
            self._known[text] = self._whole(text, depth + 1)
        return self._known[text]

    def _whole(self, text: str, depth: int) -> str | None:
        whole = _templates().exact.get(text)
        if whole is not None and "{" not in whole:
            return whole
        if text.startswith("Could not ") and (_FIX in text or text.endswith((":", "."))):
            return self._fault(text, depth)
        match = _match(text)
        if match and not match[0].is_weak():
            return self._filled(*match, depth)
        if (said := self._with_tail(text, depth)) is not None:
            return said
        if match:
            return self._filled(*match, depth)
        if text.endswith(".") and (inner := self.translation(text[:-1], depth)) is not None:
            return f"{inner}。"
        return self._pieces(text, depth)

    def _filled(self, template: _Template, values: tuple[str, ...], depth: int) -> str:
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
                inner = _templates().words.get((placeholder.rstrip("0123456789"), value)) or self._inside(value, depth)
                said = said + value if inner is None else _put(said, inner)
        return said

    def _inside(self, value: str, depth: int) -> str | None:
        """A value in its place, with its blanks: some are fragments of sentences, which begin with one."""
        inner = self.translation(value, depth)
        return self.translation(value.strip(), depth) if inner is None and value != value.strip() else inner

    def _fault(self, text: str, depth: int) -> str:
        """A sentence of `Fault.sentence`: the path is what stands in brackets behind an operation, before the first colon behind one."""
        head, fix, remedy = text.removeprefix("Could not ").rpartition(_FIX) if _FIX in text else (text[len("Could not ") :], "", "")
        places = [place for place, _ in _joints(head, ": ")][:_MOST_PIECES]
        for place in places:
            operation, bracket, path = head[:place].partition(" (")
            if self._operation(head[:place], depth) is not None:
                operation, bracket, path = head[:place], "", ""
            elif not path.endswith(")") or self._operation(operation, depth) is None:
                continue
            break
        else:
            place = places[0] if places else len(head)
            operation, bracket, path = head[:place], "", ""
        parts = {"cause": head[place + 2 :], "remedy": remedy}
        end = "" if parts["cause"].endswith(":") else "."
        known = {name: self._clause(part.removesuffix("."), depth) for name, part in parts.items()}
        known["operation"] = self._operation(operation, depth) or operation
        form = f"Could not {{operation}}{' ({path})' if bracket else ''}: {{cause}}.{' Fix: {remedy}.' if fix else ''}"
        said = _templates().exact[form].format(**known, path=path.removesuffix(")"))
        return said if end else said.removesuffix("。")

    def _operation(self, text: str, depth: int) -> str | None:
        return _templates().words.get(("operation", text)) or self.translation(text, depth)

    def _clause(self, text: str, depth: int) -> str:
        known = self.translation(text, depth)
        return text if known is None else known

    def _with_tail(self, text: str, depth: int) -> str | None:
        """A text with such a fragment at its end as follows others."""
        for template in _templates().tails:
            first = template.literals[0]
            place = text.find(first, 1) if text.endswith(template.literals[-1]) else -1
            for _ in range(_MOST_PIECES):
                if place < 0:
                    break
                if (values := _values(template, text[place:], text[place:])) is not None:
                    head = self.translation(text[:place], depth)
                    return _put(text[:place] if head is None else head, self._filled(template, values, depth))
                place = text.find(first, place + 1)
        return None

    def _pieces(self, text: str, depth: int) -> str | None:
        """A text that several sentences were joined to, each piece by itself; None where none of them is known."""
        for joint, chinese in _JOINTS:
            cuts = _joints(text, joint)[: _MOST_PIECES if joint != ": " else 3]
            if not cuts:
                continue
            edges = [0, *(end for _, end in cuts)]
            pieces = [text[begin:end] for begin, end in zip(edges, [*(begin for begin, _ in cuts), len(text)], strict=True)]
            known = [self.translation(piece, depth) for piece in pieces]
            if any(piece is not None for piece in known):
                return chinese.join(piece if new is None else new for piece, new in zip(pieces, known, strict=True))
        if text.endswith(")") and (cuts := _joints(text, " (")):
            head, tail = text[: cuts[-1][0]], text[cuts[-1][1] : -1]
            known = [self.translation(head, depth), self.translation(tail, depth)]
            if known != [None, None]:
                return f"{known[0] or head}（{known[1] or tail}）"
        return None


_JOINTS = ((". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"))
"""Between sentences, what joins them in English and in Chinese."""


def _joints(text: str, joint: str) -> list[tuple[int, int]]:
    """Where a text may have been joined: not in what is quoted."""
    hidden = _hidden(text)
    return [match.span() for match in re.finditer(re.escape(joint), hidden)]
