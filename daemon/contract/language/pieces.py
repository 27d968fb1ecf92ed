"""Several clauses in one text: where it is parted, and what is shown of the parts. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from daemon.contract.language.templates import JOINTS, joints_of

LONGEST = 14
"""Pieces of a clause of which values hold marks."""
HAN = re.compile(r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
NAME = re.compile(r'[^\s"`]+|"(?:[^"\\]|\\.)*"|`[^`]*`')
"""What may stand with a colon before a sentence."""
_MOST_PIECES = 40
"""Pieces that marks cut a text into."""
OPAQUE = 1000
"""Characters that a part counts as that no template makes: a clause is one of ours wherever it can be."""
_BEFORE = 5
"""Characters that a name before a clause counts as too: it is a part of the clause where that is one with it."""
_COMMA = ", "
"""Joins only clauses: what no template makes may have any number."""


class Edge(IntEnum):
    """How a clause begins or ends: with words, with a value that is there in Chinese too, or with one that is elsewhere."""

    WORDS = 0
    VALUE = 1
    MOVED = 2


class Reading(NamedTuple):
    """How a text is read."""

    chinese: str
    unread: int
    """Characters of values, and of what no template makes."""
    first: Edge = Edge.WORDS
    last: Edge = Edge.WORDS
    is_english: bool = False
    """Whether it is read, but stays as it is, as its values could be others."""


def kept(text: str, unread: int) -> Reading:
    """A text that stays as it is."""
    return Reading(text, unread, Edge.VALUE, Edge.VALUE, is_english=True)


def best(*readings: Reading | None) -> Reading | None:
    """The one that leaves the least unread; of those that leave as much the first."""
    return min((reading for reading in readings if reading), key=lambda reading: reading.unread, default=None)


def put(said: str, more: str) -> str:
    """Both, without a blank between two Chinese texts."""
    return said + (more.lstrip() if more[:1] == " " and HAN.match(said[-1:]) and HAN.match(more.lstrip()[:1]) else more)


def marks_of(text: str) -> list[tuple[int, int]]:
    """Where marks may join clauses, in order."""
    return sorted(place for joint in JOINTS for place in joints_of(text, joint))[:_MOST_PIECES]


def read_apart(text: str, clause: Callable[[str], Reading | None]) -> Reading | None:
    """Several clauses: of all ways to part the text at its marks the one that leaves the least unread, in as few pieces as can be."""
    marks = marks_of(text)
    begins, ends = [0, *(end for _, end in marks)], [*(begin for begin, _ in marks), len(text)]
    ways: list[tuple[int, int, tuple[_Piece, ...]]] = [(0, 0, ())]  # for each mark: unread, number, pieces before it
    for stop, end in enumerate(ends):
        ends_here = []
        for start in range(max(0, stop + 1 - LONGEST), stop + 1):
            unread, number, before = ways[start]
            begin = begins[start]
            part = text[begin:end]
            comma = bool(before) and text[before[-1].end : begin] == _COMMA
            reading = None if comma and before[-1].is_other else clause(part)
            if reading and not (comma and reading.first != Edge.WORDS):
                ends_here.append((unread + reading.unread, number + 1, (*before, _Piece(begin, end, reading))))
            if start == stop and _is_name(before, part, text[end : end + 2]):
                ends_here.append((unread + len(part) + _BEFORE, number + 1, (*before, _Piece(begin, end, None, is_name=True))))
        unread, number, before = ways[stop]
        if before and before[-1].is_other:
            ends_here.append((unread, number, (*before[:-1], _Piece(before[-1].begin, end, None))))
        elif not before or text[before[-1].end : begins[stop]] != _COMMA:
            ends_here.append((unread + OPAQUE, number + 1, (*before, _Piece(begins[stop], end, None))))
        else:
            ends_here.append((unread + 2 * OPAQUE, number, (*before[:-1], _Piece(before[-1].begin, end, None))))
        ways.append(min(ends_here, key=lambda way: way[:2]))
    unread, _, pieces = ways[-1]
    return _said(text, pieces, unread) if any(piece.reading for piece in pieces) else None


class _Piece(NamedTuple):
    """A part between marks: a clause, a name before one, or, without a reading, what no template makes."""

    begin: int
    end: int
    reading: Reading | None
    is_name: bool = False

    @property
    def is_other(self) -> bool:
        """Whether it is what no template makes."""
        return self.reading is None and not self.is_name


def _is_name(before: tuple[_Piece, ...], part: str, mark: str) -> bool:
    """Whether a part is a name before a sentence."""
    return mark == ": " and (not before or not before[-1].is_other) and NAME.fullmatch(part) is not None


def _is_open(edge: Edge, is_other: bool, beside: Edge | None) -> bool:
    """Whether what stands beside a clause may belong to a value that Chinese has elsewhere."""
    return edge == Edge.MOVED and (is_other or bool(beside))


def _said(text: str, pieces: tuple[_Piece, ...], unread: int) -> Reading:
    """The pieces with their marks. A clause stays English where what no template makes may belong to a value that Chinese has elsewhere."""
    parts: list[tuple[str, bool]] = []  # each with whether it is in Chinese
    for place, piece in enumerate(pieces):
        reading, before, after = piece.reading, pieces[place - 1 : place] if place else (), pieces[place + 1 : place + 2]
        moved = reading and (
            any(_is_open(reading.first, other.is_other, other.reading and other.reading.last) for other in before)
            or any(_is_open(reading.last, other.is_other, other.reading and other.reading.first) for other in after)
        )
        known = reading is not None and not moved and not reading.is_english
        parts.append((reading.chinese if reading and known else text[piece.begin : piece.end], known or piece.is_name))
    said = parts[0][0]
    for (left, right), (_, was), (part, known) in zip(itertools.pairwise(pieces), parts, parts[1:], strict=False):
        mark = text[left.end : right.begin]
        is_sure = known or (left.reading is not None and left.reading.last == Edge.WORDS)
        said += (JOINTS[mark] if was and is_sure else mark) + part
    first, last = pieces[0].reading, pieces[-1].reading
    return Reading(said, unread, first.first if first else Edge.VALUE, last.last if last else Edge.VALUE)
