"""Lines broken between words, for a terminal of any width: the command line's views and the daemon's own log lay their text out by it.

Pure but for `width_of`, which looks at the terminal. Widths are counted in cells: a Chinese character takes two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

LEAST_WIDTH = 60
"""Columns that every output is made for; a narrower terminal breaks the lines itself."""
_AFTER = re.compile(r"(?<=[/;,])")
_CHINESE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
_OPENS, _CLOSES = r"（《“‘【(\[", r"，。；：、！？）》”’…】,.;:!?)\]"
_PAUSES = re.compile(r"(?<=[，。；：、])")
_BETWEEN = re.compile(rf"(?<![{_OPENS}])(?<!\[.)(?![{_CLOSES}])(?:(?<=[{_CHINESE}])|(?=[{_CHINESE}]))")
"""Where Chinese, which has no blanks, may be broken: beside a character, not before what closes, nor after what opens, nor in "[必填]"."""


def width_of(console: Console) -> int | None:
    """Cells of a line; None where nothing need be cut, since it is no terminal and nobody said how wide it is."""
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        return None
    return max(LEAST_WIDTH, console.width)


def wrap(text: str, width: int | None) -> list[str]:
    """The text in lines of at most `width` cells, broken between words alone; None: in one line.

    A single word that is longer than a line, as paths are, has lines of its own, broken after a slash or a comma, and elsewhere only where
    a part of it is longer than a line still.
    """
    if width is None or cell_len(text) <= width:
        return [text]
    lines, line = list[str](), ""
    for word, gap in _words(text):
        pieces = _pieces(word, width)
        for number, piece in enumerate(pieces):
            longer = f"{line}{'' if number else gap}{piece}" if line else piece
            begins = len(pieces) > 1 and number == 0  # a long word has a line of its own, to be copied from
            if not line or (cell_len(longer) <= width and not begins):
                line = longer
            else:
                lines.append(line)
                line = piece
    return [*lines, line]


def _words(text: str) -> Iterator[tuple[str, str]]:
    """What is not broken where that can be avoided, with what stands before it in a line; a path stays whole, whatever it is named."""
    for word in text.split(" "):
        between = _PAUSES if "/" in word else _BETWEEN
        parts = [word] if word.isascii() else [part for part in between.split(word) if part]
        yield from ((part, "" if number else " ") for number, part in enumerate(parts))


def _pieces(word: str, width: int) -> list[str]:
    """What a word may be broken into."""
    if cell_len(word) <= width:
        return [word]
    return [piece for part in _AFTER.split(word) if part for piece in (chop_cells(part, width) if cell_len(part) > width else [part])]


def fold(text: Text, width: int | None, indent: int = 2) -> list[Text]:
    """The lines of a styled text, each broken as by `wrap`, with their styles; what goes on is indented by `indent` more than its line."""
    if width is None:
        return [text]
    lines = []
    for line in text.split("\n", allow_blank=True):
        inner = line.plain.lstrip(" ")
        place = len(line.plain) - len(inner)
        begin = " " * min(place, width // 3)
        if cell_len(line.plain) <= width:
            lines.append(line)
            continue
        rows = wrap(inner, width - len(begin))[:1]
        hang = begin + " " * min(indent, width // 3)
        rows += wrap(inner[len(rows[0]) :].lstrip(" "), width - len(hang))
        for number, row in enumerate(rows):
            place = line.plain.index(row, place)
            if row:
                lines.append(Text(hang if number else begin).append_text(line[place : place + len(row)]))
            place += len(row)
    return lines
