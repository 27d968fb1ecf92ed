"""A recorded sentence is read as what it was made of: templates with values in their places, within each other and after each other.

Of all ways to read a text the one counts that leaves the fewest characters to values and to what no template makes. A value stays as it is,
unless the source puts sentences there. A clause stays English where it could be read in two ways that are not said alike, or where what
follows a value that Chinese has in another place may belong to that value: so nothing is shown in the place of another.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from daemon.contract.language.catalog import translated
from daemon.contract.language.pieces import HAN, LONGEST, NAME, OPAQUE, Edge, Reading, best, kept, marks_of, put, read_apart
from daemon.contract.language.templates import Template, cuts_of, has_joint, joints_of, matches_of, places_of, templates

MOST_PARTS = 1500
"""Parts of a text, of their parts and so on, that are looked at."""
_DEEPEST = 6
"""Templates within each other."""
_MOST_TEMPLATES = 6
"""Templates that are tried for a clause."""
_ODD = 100
"""Characters that a clause counts as whose first value has marks or words in it."""
_SEVERAL, _NAMED = 1, 6
"""What a value counts as too that is read as several sentences, and for each colon in one that is not read: what sentences one after the
other, or behind a name, make as well is that.
"""
_ENDING = 8
"""Characters of an English plural, which Chinese leaves out: more is no plural."""
_AMOUNT = re.compile(r"[\d.,]+ \w+")
"""A number with its unit."""
_WORDS = re.compile(r"[A-Za-z]+ ")
"""What no value begins with, unless it is read as a part of another sentence."""
_CHOICES = re.compile(r"'[^']*'(?:, '[^']*')* or '[^']*'")
"""Values of which a key takes any, as pydantic lists them."""
_FIX = " Fix: "


class Work:
    """The reading of one text: every part of it is looked at once, and only so many are."""

    def __init__(self) -> None:
        self._texts: dict[str, Reading | None] = {}
        self._clauses: dict[str, Reading | None] = {}

    @property
    def parts(self) -> int:
        """How many were looked at."""
        return len(self._texts) + len(self._clauses)

    def translation(self, text: str) -> str | None:
        """The text in Chinese; None where nothing of it is made of a template."""
        reading = self._text(text, 0)
        return reading and reading.chinese

    def fault(self, operation: str, path: str, cause: str, remedy: str | None) -> str:
        """The sentence of these parts; without a remedy what stands before a list, or before a cause that is one."""
        return self._of_fault(operation, path, cause, remedy, 0).chinese

    def _text(self, text: str, depth: int) -> Reading | None:
        """One clause or several; None where none is known."""
        if " " not in text:
            return None
        if text not in self._texts:
            if depth > _DEEPEST or self.parts > MOST_PARTS:
                return None
            self._texts[text] = None
            self._texts[text] = self._whole(text, depth)
        return self._texts[text]

    def _whole(self, text: str, depth: int) -> Reading | None:
        if text.startswith("Could not ") and (_FIX in text or text.endswith((":", "."))):
            return self._fault(text, depth)
        whole = self._clause(text, depth)
        if not marks_of(text) or (whole and not whole.unread):
            return whole
        apart = read_apart(text, lambda part: self._clause(part, depth))
        return best(whole, apart) if whole and whole.is_english else best(apart, whole)

    def _clause(self, text: str, depth: int) -> Reading | None:
        """A text as one clause, whose values may have marks in them."""
        exact = templates().exact.get(text)
        if exact is not None and "{" not in exact:
            return Reading(exact, 0)
        if " " not in text or self.parts > MOST_PARTS:
            return None
        if (said := translated(text)) != text:  # one of a table that was stored
            return Reading(said, 0)
        if _CHOICES.fullmatch(text):
            *others, last = re.findall(r"'[^']*'", text)
            return Reading(f"{'、'.join(others)} 或 {last}", 0)
        if text not in self._clauses:
            self._clauses[text] = None
            inner = self._clause(text[:-1], depth) if text.endswith(".") else None
            ended = inner and not inner.is_english and inner._replace(chinese=f"{inner.chinese}。", last=Edge.WORDS)
            known = best(self._by_template(text, depth), ended or None, self._with_tail(text, depth), self._with_brackets(text, depth))
            self._clauses[text] = known
        return self._clauses[text]

    def _by_template(self, text: str, depth: int) -> Reading | None:
        sure = (
            (template, cuts)
            for template, cuts in matches_of(text)
            if not template.is_weak() or any(self._is_sure(template, cut, depth) for cut in cuts)
        )
        readings = [self._filled(template, text, cuts, depth) for template, cuts in itertools.islice(sure, _MOST_TEMPLATES)]
        likely = best(*readings)
        first = next((reading for reading in readings if likely and reading.unread < likely.unread + _ODD), None)
        return kept(text, likely.unread) if likely and first and likely.chinese != first.chinese else likely

    def _is_sure(self, template: Template, cut: tuple[str, ...], depth: int) -> bool:
        """Whether a template of few words makes a text: its values have no words that could be another sentence's."""
        values = zip(template.names, cut, strict=True)
        return all(" " not in value or _AMOUNT.fullmatch(value) or self._value(template, name, value, depth) for name, value in values)

    def _filled(self, template: Template, text: str, cuts: list[tuple[str, ...]], depth: int) -> Reading:
        """The translation with the values; the text as it is where they could be others, or may not reach as far as they seem to."""
        readings = [self._cut(template, cut, depth) for cut in cuts]
        reading = min(readings, key=lambda reading: reading.unread)
        least = reading.unread
        if not template.literals[0] and self._is_odd(template, cuts[0][0], depth):
            words = template.names[0] not in template.sentences and bool(_WORDS.match(cuts[0][0]))
            reading = reading._replace(unread=reading.unread + _ODD, is_english=reading.is_english or words)
        reaches = (reading.first == Edge.MOVED and has_joint(cuts[0][0])) or (reading.last == Edge.MOVED and has_joint(cuts[0][-1]))
        alike = {other.chinese for other in readings if other.unread == least}
        return kept(text, reading.unread) if reading.is_english or reaches or len(alike) > 1 else reading

    def _is_odd(self, template: Template, first: str, depth: int) -> bool:
        """Whether a value that a clause begins with has marks or words in it, and is not read as a sentence that may stand there."""
        is_odd = has_joint(first + template.literals[1][:1]) or bool(_WORDS.match(first))
        return is_odd and (template.names[0] not in template.sentences or self._value(template, template.names[0], first, depth) is None)

    def _cut(self, template: Template, values: tuple[str, ...], depth: int) -> Reading:
        """Values without anything between them are one text, in the place of the last."""
        by_name, inner = dict.fromkeys(template.names, ""), dict[str, Reading | None]()
        run, speaks, unread = "", False, 0
        for place, name in enumerate(template.names):
            run, speaks = run + values[place], speaks or name in template.sentences
            if place + 1 < len(template.names) and not template.literals[place + 1]:
                continue
            reading = inner[name] = self._value(template, name, run, depth, speaks=speaks)
            by_name[name] = run
            unread += reading.unread + _SEVERAL * has_joint(run) if reading else len(run) + _NAMED * len(joints_of(run, ": "))
            run, speaks = "", False
        said = ""
        for literal, placeholder in template.chinese:
            said = put(said, literal)
            if placeholder is not None:
                reading = inner.get(placeholder)
                said = said + by_name.get(placeholder, "") if reading is None else put(said, reading.chinese)
        left_out = any(len(value) > _ENDING for name, value in by_name.items() if name not in {place for _, place in template.chinese})
        return Reading(said, unread, *_edges(template, inner), is_english=left_out or _is_unsure(template, inner))

    def _value(self, template: Template, name: str, value: str, depth: int, *, speaks: bool | None = None) -> Reading | None:
        """A value that the source makes of words, with its blanks: some are fragments, which begin with one. None: it is as it is."""
        word = templates().words.get((name.rstrip("0123456789"), value))
        if word is not None:
            return Reading(word, 0)
        if not (name in template.sentences if speaks is None else speaks):
            return None
        reading = self._text(value, depth + 1)
        return self._text(value.strip(), depth + 1) if reading is None and value != value.strip() else reading

    def _with_tail(self, text: str, depth: int) -> Reading | None:
        """A text with such a fragment at its end as follows others."""
        for template in templates().tails:
            if not text.endswith(template.literals[-1]):
                continue
            for place in places_of(template.literals[0], text)[:LONGEST]:
                head, tail = text[:place], text[place:]
                cuts = cuts_of(template, tail, tail) if place else None
                known = self._clause(head, depth) if cuts else None
                if known and known.is_english:
                    return kept(text, known.unread)
                if cuts and (known.last != Edge.MOVED if known else NAME.fullmatch(head)):
                    more = self._filled(template, tail, cuts, depth)
                    return Reading(
                        put(known.chinese if known else head, more.chinese), more.unread + (known.unread if known else len(head)),
                        known.first if known else Edge.VALUE, more.last,
                    )  # fmt: skip
        return None

    def _with_brackets(self, text: str, depth: int) -> Reading | None:
        """A text with another in brackets behind it."""
        cuts = joints_of(text, " (") if text.endswith(")") else []
        if not cuts:
            return None
        parts = text[: cuts[-1][0]], text[cuts[-1][1] : -1]
        head, inner = self._clause(parts[0], depth), self._text(parts[1], depth + 1)
        if not head and not inner:
            return None
        unread = sum(reading.unread if reading else len(part) for reading, part in ((head, parts[0]), (inner, parts[1])))
        unread += 0 if head or NAME.fullmatch(parts[0]) else OPAQUE
        if head and head.last == Edge.MOVED and not inner:
            return kept(text, unread + 3)
        said = head.chinese if head else parts[0], inner.chinese if inner else parts[1]
        if (head and (head.is_english or (not inner and head.last == Edge.VALUE))) or (not head and not NAME.fullmatch(parts[0])):
            return Reading(f"{said[0]} ({said[1]})", unread + 3, head.first if head else Edge.VALUE, Edge.VALUE)
        return Reading(f"{said[0]}（{said[1]}）", unread, head.first if head else Edge.VALUE)

    def _fault(self, text: str, depth: int) -> Reading:
        """A sentence of `Fault.sentence`, at whichever colon, with a path in brackets or without, it is parted with the least unread."""
        head, fix, remedy = text.removeprefix("Could not ").rpartition(_FIX) if _FIX in text else (text[len("Could not ") :], "", "")
        readings = [
            self._of_fault(operation, path, head[place + 2 :], remedy if fix else None, depth)
            for place in [place for place, _ in joints_of(head, ": ")][:LONGEST] or [len(head)]
            for operation, path in _with_path(head[:place])
        ]
        return min(readings, key=lambda reading: reading.unread)

    def _of_fault(self, operation: str, path: str, cause: str, remedy: str | None, depth: int) -> Reading:
        form = templates().exact[f"Could not {{operation}}{' ({path})' if path else ''}: {{cause}}.{' Fix: {remedy}.' if remedy else ''}"]
        parts = {"operation": operation, "cause": cause.removesuffix("."), "remedy": (remedy or "").removesuffix(".")}
        word = templates().words.get(("operation", operation))
        readings = {name: self._text(parts[name], depth + 1) for name in ("cause", "remedy")}
        readings["operation"] = self._clause(operation, depth + 1) if word is None else Reading(word, 0)
        unread = sum(reading.unread if (reading := readings[name]) else len(part) for name, part in parts.items())
        unread += len(operation)  # a shorter one is likelier: what follows a colon explains it
        said = {name: reading.chinese if (reading := readings[name]) else part for name, part in parts.items()}
        said["operation"] = put("无法", said["operation"] if HAN.match(said["operation"]) else f" {operation}").removeprefix("无法")
        chinese = form.format(path=path, **said)
        return Reading(chinese.removesuffix("。") if cause.endswith(":") else chinese, unread + len(path))


def _with_path(text: str) -> Iterator[tuple[str, str]]:
    """What was done, and the path behind it, in the ways in which the text may have them."""
    for begin, end in joints_of(text, " (")[-1:] if text.endswith(")") else ():
        yield text[:begin], text[end:-1]
    yield text, ""


def _is_unsure(template: Template, inner: dict[str, Reading | None]) -> bool:
    """Whether a value that ends with one which Chinese has elsewhere may go on behind the mark that follows it."""
    return any(
        reading is not None and reading.last == Edge.MOVED and template.literals[template.names.index(name) + 1][:1] in (":", ";", ",", ".")
        for name, reading in inner.items()
    )


def _edges(template: Template, inner: dict[str, Reading | None]) -> tuple[Edge, Edge]:
    """How a template with its values begins and ends."""
    names = list(inner)
    if not names:
        return Edge.WORDS, Edge.WORDS
    pieces = [(literal, name) for literal, name in template.chinese if literal or name in inner]
    begin, end = inner[names[0]], inner[names[-1]]
    first = Edge.MOVED if pieces[0] != ("", names[0]) else begin.first if begin else Edge.VALUE
    last = Edge.MOVED if pieces[-1][1] != names[-1] else end.last if end else Edge.VALUE
    return Edge.WORDS if template.literals[0] else first, Edge.WORDS if template.literals[-1] else last
