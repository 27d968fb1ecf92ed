"""Text laid out for the width of a terminal: shortened in the middle, wrapped between words, put into columns. Pure.

Widths are counted in cells of the terminal: a Chinese character takes two, a combining accent none. Controls are shown as their codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len
from rich.text import Text

from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import language, translated
from daemon.contract.language.lists import gap_after
from daemon.contract.light import dataclass
from daemon.operating.log.wrapping import wrap

GAP = 2
"""Cells between two columns."""
DOTS = "…"


def middle(text: str, width: int) -> str:
    """The text in at most `width` cells: what is in the middle of a longer one is left out, since names differ at their ends."""
    if cell_len(text) <= width:
        return text
    if width < 1:
        return ""
    tail = (width - 1) // 2
    return _begin(text, width - 1 - tail) + DOTS + _begin(text[::-1], tail)[::-1]


def _begin(text: str, width: int) -> str:
    """The first characters that fit into `width` cells."""
    taken = 0
    for place, character in enumerate(text):
        taken += cell_len(character)
        if taken > width:
            return text[:place]
    return text


def hanging(label: str, text: str, width: int | None, *, style: str = "") -> list[Text]:
    """`label text` with the label in a style; lines after the first are indented."""
    label, text = printable(translated(label)), printable(text)
    if label.endswith(":") and language() == "zh_CN":
        label = f"{label[:-1]}："
    gap = gap_after(label, text) if label else ""
    first, *more = wrap(f"{label}{gap}{text}".strip() if label else text, None if width is None else width - 2)
    shown = Text(first)
    if label and style and first.startswith(label):
        shown.stylize(style, 0, len(label))
    return [shown, *(Text(f"  {row}") for row in more)]


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    how: Literal["middle", "words"] = "middle"
    """What becomes of a cell that is too wide: shortened in the middle, or wrapped between words."""
    least: int = 6
    """Cells that it keeps."""
    right: bool = False
    """Whether cells end at its right edge."""

    @property
    def shown(self) -> str:
        """The title in the reader's language."""
        return translated(self.title)


@dataclass(frozen=True)
class Cell:
    """What stands in a column of a row, with its style."""

    text: str
    style: str = ""


def fits(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> bool:
    """Whether the table needs no more than `width` cells, with nothing shortened or wrapped."""
    shown = [[Cell(printable(cell.text)) for cell in row] for row in rows]
    return sum(widths(columns, shown, None)) + GAP * (len(columns) - 1) <= width


def widths(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[int]:
    """Cells of each column: what it needs, where that fits; else columns give way, the widest first, down to their least."""
    wanted = [max([cell_len(column.shown), *(cell_len(row[place].text) for row in rows)]) for place, column in enumerate(columns)]
    if width is None:
        return wanted
    spare = width - GAP * (len(columns) - 1)
    cells = list(wanted)
    while sum(cells) > spare:
        wide = max(range(len(cells)), key=lambda place: cells[place] - columns[place].least)
        if cells[wide] <= columns[wide].least:
            return cells
        cells[wide] -= 1
    return cells


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None) -> list[list[Text]]:
    """The title's lines, then the lines of each row: none longer than `width`, where the columns' least widths allow it."""
    rows = [[Cell(printable(cell.text), cell.style) for cell in row] for row in rows]
    taken = widths(columns, rows, width)
    return [_row([Cell(column.shown, "bold") for column in columns], columns, taken), *(_row(row, columns, taken) for row in rows)]


def _row(cells: Sequence[Cell], columns: Sequence[Column], taken: Sequence[int]) -> list[Text]:
    stacks = [
        wrap(" ".join(_shortened(word, room) for word in cell.text.split(" ")), room)
        if column.how == "words"
        else [middle(cell.text, room)]
        for cell, column, room in zip(cells, columns, taken, strict=True)
    ]
    lines = []
    for number in range(max(map(len, stacks))):
        line = Text()
        for stack, cell, column, room in zip(stacks, cells, columns, taken, strict=True):
            text = stack[number] if number < len(stack) else ""
            free = " " * max(0, room - cell_len(text))
            line.append(free if column.right else "").append(text, cell.style).append("" if column.right else free).append(" " * GAP)
        line.rstrip()
        lines.append(line)
    return lines


def _shortened(word: str, room: int) -> str:
    """A word that fits; Chinese, which is broken between its characters, as it is."""
    return middle(word, room) if word.isascii() else word
