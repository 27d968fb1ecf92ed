"""Templates of recorded sentences: read from the compiled catalogue, and found again in a finished text with the values in their places.

No regular expression of a template is run: literals are looked for one after the other, so the time grows with length times templates.
"""

from __future__ import annotations

import functools
import re
import string
import struct
from collections.abc import Iterator
from typing import NamedTuple

from daemon.contract.language.catalog import FOLDER

_FEW = 12
"""Characters of a template that is no sure sign."""
_MOST_CUTS, _MOST_PLACES = 60, 8
"""Ways to cut a text by a template that are tried, and places of a literal."""
_NOTHING = "nothing; "
"""How a remedy begins that asks for nothing."""
_CLAUSES = frozenset({"cause", "error", "reason", "remedy", "sentence", "why"})
"""Placeholders in which whole sentences stand."""
_PARTNERS = {"(": ")", "（": "）"}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')


class Template(NamedTuple):
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


class Templates(NamedTuple):
    """Every template that has a translation."""

    exact: dict[str, str]
    """English → Chinese, all of them."""
    words: dict[tuple[str, str], str]
    """The name of a placeholder, and a word that can stand in it → Chinese."""
    by_word: dict[str, list[Template]]
    """Those that begin with a whole word, by it; the heaviest first."""
    others: list[Template]
    tails: list[Template]
    """Those that only follow other words: they begin with a blank or a comma."""


@functools.cache
def templates() -> Templates:
    """All of them, read when they are asked for first."""
    exact: dict[str, str] = {}
    words: dict[tuple[str, str], str] = {}
    for english, chinese in _read():
        place, mark, word = english.partition("\x04")  # between context and text, as gettext has it
        if mark:
            words[place, word] = chinese
        else:
            exact[english] = chinese
    exact = {**{first: said for english, chinese in exact.items() for first, said in _cut(english, chinese)}, **exact}
    parsed = sorted((_parsed(english, chinese) for english, chinese in exact.items() if "{" in english), key=Template.weight, reverse=True)
    by_word: dict[str, list[Template]] = {}
    for template in parsed:
        by_word.setdefault(_first_word(template.literals[0]), []).append(template)
    tails = [_parsed(english, chinese) for english, chinese in exact.items() if english[:1] in " ,;("]
    return Templates(exact, words, by_word, by_word.pop("", []), sorted(tails, key=Template.weight, reverse=True))


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
    """What a long sentence has of a text with several alternatives: the first of them, where they have enough words to be known by.

    Of a remedy that asks for nothing also what is said where nobody is asked: "it starts within minutes".
    """
    ends = [place for place, _ in joints_of(english, "; ")]
    ends_there = [place for place, _ in joints_of(chinese, "；")]
    if english.startswith(_NOTHING) and ends_there:
        yield english[len(_NOTHING) :], chinese[ends_there[0] + 1 :]
    if len(ends) == len(ends_there):
        firsts = ((english[:end], chinese[:there]) for end, there in zip(ends, ends_there, strict=True))
        yield from ((first, said) for first, said in firsts if not _parsed(first, said).is_weak())


def _parsed(english: str, chinese: str) -> Template:
    literals, names = [""], []
    for literal, name, _, _ in string.Formatter().parse(english):
        literals[-1] += literal  # a doubled brace ends a piece without a name
        if name is not None:
            names.append(name)
            literals.append("")
    return Template(english, tuple(literals), tuple(names), tuple((text, name) for text, name, _, _ in string.Formatter().parse(chinese)))


def _first_word(text: str) -> str:
    word, blank, _ = text.partition(" ")
    return word if blank and word else ""


def match_of(text: str, *, loose: bool = False) -> tuple[Template, tuple[str, ...]] | None:
    """The heaviest template that makes the text, and the values in its places; None where none does.

    `loose`: a value may have a colon in it, before which another sentence may have ended.
    """
    known = templates()
    candidates = sorted(
        [
            template
            for template in (*known.by_word.get(_first_word(text), ()), *known.others)
            if text.startswith(template.literals[0]) and text.endswith(template.literals[-1]) and max(template.literals, key=len) in text
        ],
        key=Template.weight,
        reverse=True,
    )
    hidden = _hidden(text)
    for template in candidates:
        values = values_of(template, text, hidden, loose=loose) or values_of(template, text, text, loose=loose)
        if values is not None:
            return template, values
    return None


def values_of(template: Template, text: str, hidden: str, *, loose: bool = False) -> tuple[str, ...] | None:
    """What stands in a template's places; of several ways to cut the text the first that leaves every value whole, None where none does.

    `hidden`: the text with zeros for what is quoted, where no literal begins but one of quotes.
    """
    if not template.names:
        return () if text == template.literals[0] else None
    first, *inner, last = template.literals
    if len(first) + len(last) > len(text):
        return None
    body, left = len(text) - len(last), _MOST_CUTS
    open_: list[tuple[int, tuple[str, ...]]] = [(len(first), ())]  # ways to go on: where, with the values before
    while open_ and left:
        left -= 1
        begin, values = open_.pop()
        if len(values) == len(inner):
            cut = (*values, text[begin:body])
            if _are_whole(template, cut, loose=loose):
                return cut
            continue
        literal = inner[len(values)]
        places: list[int] = []
        place = begin if not literal else _place(text, hidden, literal, begin, body)
        while place >= 0 and len(places) < _MOST_PLACES:
            places.append(place)
            place = _place(text, hidden, literal, place + 1, body) if literal else -1
        open_ += [(place + len(literal), (*values, text[begin:place])) for place in reversed(places)]
    return None


def _are_whole(template: Template, values: tuple[str, ...], *, loose: bool) -> bool:
    """Whether every bracket and quotation mark of a value has its partner in it, and no value begins in one sentence and ends in another.

    The last may, where it is the last in the translation too: the sentences keep their order then.
    """
    last = template.names[-1] if not template.literals[-1] and template.chinese[-1][1] == template.names[-1] else None
    for place, (name, value) in enumerate(zip(template.names, values, strict=True)):
        if not _is_closed(value):
            return False
        if name.rstrip("0123456789") in _CLAUSES or (name == last and place + 1 == len(values)):
            continue
        if any(joints_of(value, joint) for joint in (("; ", ". ") if loose else ("; ", ". ", ": "))):
            return False
    return True


def _is_closed(value: str) -> bool:
    """Whether every bracket and quotation mark of a value has its partner in it."""
    shown = _QUOTED.sub("", value)
    deep = 0
    for character in shown:
        deep += (character == "(") - (character == ")")
        if deep < 0:
            return False
    return not deep and '"' not in shown and "`" not in shown


def _hidden(text: str) -> str:
    """The text with zeros for what stands in quotation marks or backticks, which are left."""
    return _QUOTED.sub(lambda match: match[0][0] + "\0" * (len(match[0]) - 2) + match[0][-1], text)


def _outside(text: str) -> str:
    """The text with zeros for what is quoted, and for what stands in brackets that have their partners."""
    characters = list(_hidden(text))
    opened: list[int] = []
    for place, character in enumerate(characters):
        if character in _PARTNERS:
            opened.append(place)
        elif opened and character == _PARTNERS[characters[opened[-1]]]:
            begin = opened.pop()
            characters[begin + 1 : place] = "\0" * (place - begin - 1)
    return "".join(characters)


def _place(text: str, hidden: str, literal: str, begin: int, end: int) -> int:
    """Where a literal is next, outside of what is quoted; -1 where it is no more."""
    place = text.find(literal, begin, end)
    while place >= 0 and hidden[place] != literal[0]:
        place = text.find(literal, place + 1, end)
    return place


def joints_of(text: str, joint: str) -> list[tuple[int, int]]:
    """Where a text may have been joined: not in what is quoted, nor in brackets."""
    return [match.span() for match in re.finditer(re.escape(joint), _outside(text))] if joint in text else []
