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
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
_HAN = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
_FIX = " Fix: "
_SENTENCE = "Could not {operation}: {cause}. Fix: {remedy}."
_SENTENCE_WITH_PATH = "Could not {operation} ({path}): {cause}. Fix: {remedy}."
JOINED = (_SENTENCE, _SENTENCE_WITH_PATH)
"""How `Fault.sentence` joins its parts."""


def translated_text(text: str) -> str:
    """A recorded sentence, or several in lines, in the reader's language."""
    return text if language() == "en" or not text else "\n".join(_of_line(line) for line in text.split("\n"))


def fault_sentence(operation: str, path: str, cause: str, remedy: str) -> str:
    """The one sentence of a fault in the reader's language, of its parts in English. A cause that is a list ends its line."""
    form = _templates().exact[_SENTENCE_WITH_PATH if path else _SENTENCE]
    parts = {"operation": translated_text(operation), "path": path, "cause": translated_text(cause), "remedy": translated_text(remedy)}
    if cause.endswith("\n"):
        return form.replace("{cause}。", "{cause}").format(**parts)
    return form.format(**parts | {name: parts[name].rstrip(".。") for name in ("cause", "remedy")})


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


class _Templates(NamedTuple):
    exact: dict[str, str]
    """English → Chinese, all of them."""
    by_word: dict[str, list[_Template]]
    """Those that begin with a whole word, by it; the heaviest first."""
    others: list[_Template]
    tails: list[_Template]
    """Those that only follow other words: they begin with a blank or a comma."""


@functools.cache
def _templates() -> _Templates:
    exact = dict(_read())
    parsed = sorted((_parsed(english, chinese) for english, chinese in exact.items() if "{" in english), key=_Template.weight, reverse=True)
    by_word: dict[str, list[_Template]] = {}
    for template in parsed:
        by_word.setdefault(_first_word(template.literals[0]), []).append(template)
    tails = [_parsed(english, chinese) for english, chinese in exact.items() if english[:1] in " ,;("]
    return _Templates(exact, by_word, by_word.pop("", []), sorted(tails, key=_Template.weight, reverse=True))


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


def _parsed(english: str, chinese: str) -> _Template:
    parts = list(string.Formatter().parse(english))
    names = tuple(name for _, name, _, _ in parts if name is not None)
    literals = [literal for literal, _, _, _ in parts]
    if parts[-1][1] is not None:
        literals.append("")
    return _Template(english, tuple(literals), names, tuple((literal, name) for literal, name, _, _ in string.Formatter().parse(chinese)))


def _first_word(text: str) -> str:
    word, blank, _ = text.partition(" ")
    return word if blank and word else ""


def _of_line(line: str) -> str:
    text = line.strip()
    if not text or len(line) > MOST_READ:
        return line
    inner = _translation(text, 0)
    return line if inner is None else f"{line[: len(line) - len(line.lstrip())]}{inner}{line[len(line.rstrip()) :]}"


@functools.lru_cache(maxsize=4096)
def _translation(text: str, depth: int) -> str | None:
    """The text in Chinese; None where nothing of it is made of a template."""
    if depth > _DEEPEST or not text or text.isdigit():
        return None
    whole = _templates().exact.get(text)
    if whole is not None and "{" not in whole:
        return whole
    if text.startswith("Could not ") and _FIX in text:
        return _of_fault(text, depth)
    if match := _match(text):
        return _filled(*match, depth)
    if text.endswith(".") and (inner := _translation(text[:-1], depth + 1)) is not None:
        return f"{inner}。"
    return _of_pieces(text, depth)


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
    hidden = _QUOTED.sub(lambda match: "\0" * len(match[0]), text)
    for template in candidates:
        values = _values(template, text, hidden) or _values(template, text, text)
        if values is not None:
            return template, values
    return None


def _values(template: _Template, text: str, hidden: str) -> tuple[str, ...] | None:
    """What stands in a template's places. `hidden`: the text with zeros for what is quoted, where no literal but one in quotes begins."""
    first, *inner, last = template.literals
    begin, end, values = len(first), len(text) - len(last), []
    if begin > end:
        return None
    for literal in inner:
        place = hidden.find(literal[:1], begin, end) if literal else begin
        while literal and place >= 0 and not text.startswith(literal, place):
            place = hidden.find(literal[:1], place + 1, end)
        if place < 0 or place + len(literal) > end:
            return None
        values.append(text[begin:place])
        begin = place + len(literal)
    return (*values, text[begin:end])


def _filled(template: _Template, values: tuple[str, ...], depth: int) -> str:
    """The translation with the values; no blank is left between two Chinese texts."""
    by_name: dict[str, str] = {}
    run = ""
    for place, name in enumerate(template.names):
        run += values[place]
        if place + 1 < len(template.names) and not template.literals[place + 1]:
            by_name[name] = ""  # values without anything between them are one text
            continue
        by_name[name], run = run, ""
    said = ""
    for literal, placeholder in template.chinese:
        said = _put(said, literal)
        if placeholder is not None:
            value = by_name.get(placeholder, "")
            inner = _inside(value, depth + 1)
            said = _put(said, inner) if inner is not None else said + value
    return said


def _put(said: str, more: str) -> str:
    if more[:1] == " " and _HAN.match(said[-1:]) and _HAN.match(more.lstrip()[:1]):
        return said + more.lstrip()
    if said[-1:] == " " and _HAN.match(more[:1]) and _HAN.match(said.rstrip()[-1:]):
        return said.rstrip() + more
    return said + more


def _inside(value: str, depth: int) -> str | None:
    """A value in its place, with its blanks: some are fragments of sentences, which begin with one."""
    if (inner := _translation(value, depth)) is not None:
        return inner
    text = value.strip()
    return None if text == value else _translation(text, depth)


def _of_fault(text: str, depth: int) -> str:
    """A sentence of `Fault.sentence`."""
    head, _, remedy = text.removeprefix("Could not ").rpartition(_FIX)
    hidden = _QUOTED.sub(lambda match: "\0" * len(match[0]), head)
    places = [match.start() for match in re.finditer(": ", hidden)][:_MOST_PIECES] or [len(head)]
    whole = [place for place in places if _translation(head[:place].partition(" (")[0], depth + 1) or _translation(head[:place], depth + 1)]
    place = whole[0] if whole else places[0]
    operation, path = head[:place], ""
    if operation.endswith(")") and " (" in operation and _translation(operation, depth + 1) is None:
        operation, _, path = operation[:-1].partition(" (")
    return fault_sentence(operation, path, head[place + 2 :].rstrip("."), remedy.rstrip("."))


_JOINTS = ((". ", "。"), ("; ", "；"), (": ", "："), (" (", "（"), (", ", "，"))


def _of_pieces(text: str, depth: int) -> str | None:
    """A text that several sentences were joined to, each piece by itself; None where none of them is known."""
    for template in _templates().tails:
        place = text.find(template.literals[0], 1)
        while 0 < place and (values := _values(template, text[place:], text[place:])) is None:
            place = text.find(template.literals[0], place + 1)
        if place > 0 and text.endswith(template.literals[-1]) and values is not None:
            head = _translation(text[:place], depth + 1)
            return _put(text[:place] if head is None else head, _filled(template, values, depth + 1))
    hidden = _QUOTED.sub(lambda match: "\0" * len(match[0]), text)
    for joint, chinese in _JOINTS:
        for place in [match.start() for match in re.finditer(re.escape(joint), hidden)][:_MOST_PIECES]:
            head, tail = text[:place], text[place + len(joint) :]
            close = ""
            if joint == " (":
                if not tail.endswith(")"):
                    continue
                tail, close = tail[:-1], "）"
            first, second = _translation(head, depth + 1), _translation(tail, depth + 1)
            if first is not None or second is not None:
                return f"{first or head}{chinese}{second or tail}{close}"
    return None
