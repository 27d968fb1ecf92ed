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
_CLAUSES = frozenset(
    {
        "cause",
        "context",
        "error",
        "expected",
        "failure",
        "reason",
        "remedy",
        "rivals_said",
        "said_of_syntax",
        "sentence",
        "strerror",
        "time",
        "which",
        "why",
    }
)
"""Placeholders in which sentences stand, also where the source does not show it."""
_MARK = "!s}"
"""In the compiled catalogue behind the name of a value that can be a sentence."""
JOINTS = {". ": "。", "; ": "；", ": ": "：", ", ": "，"}
"""Between sentences, what joins them in English and in Chinese."""
_KEY = re.compile(r"([a-z_]+(?:\.[a-z_]+)+): ")
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
    sentences: frozenset[str]
    """Names of the values that can be sentences themselves. Any other value is shown as it is, whatever it says."""

    longest: str
    """The longest of the literals."""

    def weight(self) -> tuple[int, int]:
        """The heavier, the surer: the more of a text it explains, and of those that explain as much, the more of its begin and end."""
        return sum(map(len, self.literals)), len(self.literals[0]) + len(self.literals[-1])

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
    exact = {english.replace(_MARK, "}"): chinese for english, chinese in exact.items()}
    by_word: dict[str, list[Template]] = {}
    for template in parsed:
        by_word.setdefault(_first_word(template.literals[0]), []).append(template)
    tails = [template for template in parsed if template.english[:1] in " ,;("]
    tails += [_parsed(english, chinese) for english, chinese in exact.items() if english[:1] in " ,;(" and "{" not in english]
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

    Of a remedy that asks for nothing also what is said where nobody is asked: "it starts within minutes". Of what is wrong with a key also
    the words behind the key, for which an option or a variable may stand.
    """
    key = _KEY.match(english)
    if key and chinese.startswith(key[1] + "：") and not _parsed(english[key.end() :], "").is_weak():
        yield english[key.end() :], chinese[key.end(1) + 1 :]
    ends = [place for place, _ in joints_of(english, "; ")]
    ends_there = [place for place, _ in joints_of(chinese, "；")]
    if english.startswith(_NOTHING) and ends_there:
        yield english[len(_NOTHING) :], chinese[ends_there[0] + 1 :]
    if len(ends) == len(ends_there):
        firsts = ((english[:end], chinese[:there]) for end, there in zip(ends, ends_there, strict=True))
        yield from ((first, said) for first, said in firsts if not _parsed(first, said).is_weak())


def _parsed(english: str, chinese: str) -> Template:
    literals, names, sentences = [""], [], set()
    for literal, name, _, mark in string.Formatter().parse(english):
        literals[-1] += literal  # a doubled brace ends a piece without a name
        if name is not None:
            names.append(name)
            literals.append("")
            if mark or name.rstrip("0123456789") in _CLAUSES:
                sentences.add(name)
    parsed = tuple((text, name) for text, name, _, _ in string.Formatter().parse(chinese))
    longest = max(literals, key=len)
    return Template(english.replace(_MARK, "}"), tuple(literals), tuple(names), parsed, frozenset(sentences), longest)


def _first_word(text: str) -> str:
    word, blank, _ = text.partition(" ")
    return word if blank and word else ""


def matches_of(text: str) -> Iterator[tuple[Template, list[tuple[str, ...]]]]:
    """The templates that make the text, the heaviest first, each with the values that may be in its places."""
    known = templates()
    candidates = sorted(
        [
            template
            for template in (*known.by_word.get(_first_word(text), ()), *known.others)
            if text.endswith(template.literals[-1]) and text.startswith(template.literals[0]) and template.longest in text
        ],
        key=Template.weight,
        reverse=True,
    )
    hidden = _hidden(text)
    for template in candidates:
        if cuts := cuts_of(template, text, hidden) or cuts_of(template, text, text):
            yield template, cuts


def cuts_of(template: Template, text: str, hidden: str) -> list[tuple[str, ...]]:
    """What may stand in a template's places: every way to cut the text that leaves each value whole.

    A value that is no sentence has marks between sentences in it only where there is no other way.
    `hidden`: the text with zeros for what is quoted, where no literal begins but one of quotes.
    """
    if not template.names:
        return [()] if text == template.literals[0] else []
    first, *inner, last = template.literals
    if len(first) + len(last) > len(text) or not (text.startswith(first) and text.endswith(last)):
        return []
    body, left = len(text) - len(last), _MOST_CUTS
    whole: list[tuple[str, ...]] = []
    open_: list[tuple[int, tuple[str, ...]]] = [(len(first), ())]  # ways to go on: where, with the values before
    while open_ and left:
        left -= 1
        begin, values = open_.pop()
        if len(values) == len(inner):
            cut = (*values, text[begin:body])
            whole += [cut] if all(map(_is_closed, cut)) and not any(map(_is_cut, values, inner)) else []
            continue
        literal = inner[len(values)]
        places: list[int] = []
        place = begin if not literal else _place(text, hidden, literal, begin, body)
        while place >= 0 and len(places) < _MOST_PLACES:
            places.append(place)
            place = _place(text, hidden, literal, place + 1, body) if literal else -1
        open_ += [(place + len(literal), (*values, text[begin:place])) for place in reversed(places)]
    plain = [cut for cut in whole if not any(has_joint(value) for value in _names_of(template, cut))]
    return plain or whole


def _names_of(template: Template, cut: tuple[str, ...]) -> list[str]:
    """The values of a cut that are no sentences."""
    return [value for name, value in zip(template.names, cut, strict=True) if name not in template.sentences]


def _is_cut(value: str, literal: str) -> bool:
    """Whether a value ends with a mark, where nothing but a blank parts it from the next: it would have been cut there."""
    return literal == " " and value.endswith((";", ":", ",", "."))


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


def has_joint(text: str) -> bool:
    """Whether two sentences may have been joined in a text."""
    return any(joints_of(text, joint) for joint in ("; ", ". ", ": "))


def places_of(literal: str, text: str) -> list[int]:
    """Where a literal stands in a text."""
    return [match.start() for match in re.finditer(re.escape(literal), text)]
