"""Rows of text files: lines, JSON lines, a JSON list, and separated values; `tables` reads arrow and parquet.

Called by `sources`, one generator a file.

Nothing below a root is trusted: bytes, lines and nesting are bounded, and whatever a file holds becomes rows or a `BadRow`. Of a file that
is larger than its share of bytes or rows, pieces at even distances are read, without the lines that they cut.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO

from daemon.contract.disk.data_files import EXPECTED

PIECE, LEAST_PIECE = 1 << 20, 1 << 16
"""Bytes that are read in one place of a large file."""
PLACES = 32
"""Places of a large file that are read, where pieces of LEAST_PIECE allow it."""
LONGEST_LINE = 4 << 20
"""Bytes of a line; a longer one is no row."""
LARGEST_LIST = 64 << 20
"""Bytes of a .json file, which can only be read as a whole."""


@dataclass(frozen=True)
class Row:
    """One row, and where it stands: "line 7", "row 7"."""

    where: str
    value: Any


@dataclass(frozen=True)
class BadRow:
    """What is no row, with the reason as a clause."""

    where: str
    reason: str


class FileRefused(ValueError):
    """Why a file holds no rows at all, as a clause."""


@dataclass
class Share:
    """How much of a file is read: what each row costs in Python is more than its bytes, where they are few."""

    bytes: int
    rows: int
    cut: bool = False
    """Whether there is more in the file than that; set while it is read."""

    def some(self, rows: Iterator[Row | BadRow]) -> Iterator[Row | BadRow]:
        """As many of the rows, from the first on."""
        yield from islice(rows, self.rows)
        self.cut = self.cut or next(rows, None) is not None


def lines(stream: BinaryIO, size: int, share: Share) -> Iterator[Row | BadRow]:
    """Yield the lines of a text file that are not blank, from its beginning."""
    share.cut = size > share.bytes
    yield from share.some(_lines(stream, min(size, share.bytes)))


def _lines(stream: BinaryIO, length: int) -> Iterator[Row | BadRow]:
    for where, line in _from(stream, 0, length, first=True):
        text = _decoded(line, where)
        if isinstance(text, BadRow):
            yield text
            continue
        for part in text.splitlines():  # at all the ends that Python knows, as the prompts have always been read
            if part.strip():
                yield Row(where, part)


def json_lines(stream: BinaryIO, size: int, share: Share) -> Iterator[Row | BadRow]:
    """Yield the values of a file with one JSON value a line."""
    beginning = stream.read(PIECE)
    of_rows = share.rows * max(1, len(beginning)) // (beginning.count(b"\n") + 1)
    budget = min(share.bytes, of_rows)
    share.cut = size > budget
    yield from share.some(_json_lines(stream, _places(size, budget)))


def _json_lines(stream: BinaryIO, places: list[tuple[int, int]]) -> Iterator[Row | BadRow]:
    for start, length in places:
        for where, line in _from(stream, start, length, first=start == 0):
            if line.strip():
                yield _value(line, where)


def json_list(stream: BinaryIO, size: int, share: Share) -> Iterator[Row | BadRow]:
    """The values of a JSON list; of an object with one list of objects (`{"data": […]}`), those of that list. FileRefused for others."""
    if size > LARGEST_LIST:
        raise FileRefused(f"it has {size:,} bytes, and a .json file is read as a whole, up to {LARGEST_LIST:,}; write it as .jsonl")
    data = stream.read(LARGEST_LIST + 1)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        if b"\n" in data.strip() and isinstance(_value(data.strip().split(b"\n", 1)[0], ""), Row):
            yield from _all_lines(data)  # JSON lines under the other name
            return
        raise FileRefused(f"it is not JSON ({_short(error)})") from None
    if isinstance(value, dict):
        inside = [rows for rows in value.values() if isinstance(rows, list) and rows and isinstance(rows[0], dict)]
        value = inside[0] if len(inside) == 1 else value
    if not isinstance(value, list):
        raise FileRefused(f"it is no JSON list of rows; {EXPECTED}")
    share.cut = len(value) > share.rows
    step = -(-len(value) // share.rows)
    for number in range(0, len(value), step or 1):
        yield Row(f"row {number + 1}", value[number])


def separated(stream: BinaryIO, size: int, share: Share) -> Iterator[Row | BadRow]:
    """Yield the rows of separated values (.csv, .tsv) from the beginning on, by the names in the first line. What separates them is the
    character among comma, semicolon and tab that the first line has most often."""
    share.cut = size > share.bytes
    data = stream.read(share.bytes)
    if share.cut:
        data = data[: data.rfind(b"\n") + 1]
    text = _decoded(data, "line 1")
    if isinstance(text, BadRow):
        raise FileRefused("it is not UTF-8 text")
    first = text.partition("\n")[0]
    yield from share.some(_separated(text, max(",;\t", key=first.count)))


def _separated(text: str, separator: str) -> Iterator[Row | BadRow]:
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    while True:
        where = f"the row after line {rows.line_num}"
        try:
            row = next(rows, None)
        except csv.Error as error:
            yield BadRow(where, _short(error))
            continue
        if row is None:
            return
        if None in row:
            yield BadRow(where, "it has more fields than the first line has names")
        else:
            yield Row(where, {str(name).strip(): value for name, value in row.items() if value is not None})


def _all_lines(data: bytes) -> Iterator[Row | BadRow]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield _value(line, f"line {number}")


def _places(size: int, budget: int) -> list[tuple[int, int]]:
    """Start and length of the pieces to read: all of it where that fits, else pieces at even distances, the first at the beginning."""
    if size <= budget:
        return [(0, size)]
    piece = min(PIECE, max(LEAST_PIECE, budget // PLACES))
    count = max(1, budget // piece)
    step = (size - piece) // max(1, count - 1) if count > 1 else 0
    return [(number * step, piece) for number in range(count)]


def _from(stream: BinaryIO, start: int, length: int, *, first: bool) -> Iterator[tuple[str, bytes]]:
    """Yield the whole lines of a piece, with where they stand; away from the beginning of a file nobody has counted its lines."""
    stream.seek(start)
    left, number = length, 0
    if not first:
        left -= len(stream.readline(left))  # the end of a line that began before
    while left > 0:
        line = stream.readline(min(left, LONGEST_LINE) + 1)
        if not line:
            return
        number += 1
        left -= len(line)
        where = f"line {number}" if first else f"a line behind byte {start:,}"
        if not line.endswith(b"\n") and len(line) > LONGEST_LINE:
            left -= _skip_line(stream, left)
            line = b""
            yield where, b"\xff"  # longer than any row: what is no UTF-8 is refused below
            continue
        if left < 0 and not line.endswith(b"\n"):
            return  # the piece ends inside this line
        yield where, line


def _skip_line(stream: BinaryIO, most: int) -> int:
    """Read to the end of a line, at most so many bytes; gives how many."""
    skipped = 0
    while skipped < most:
        part = stream.readline(min(PIECE, most - skipped))
        skipped += len(part)
        if not part or part.endswith(b"\n"):
            break
    return skipped


def _decoded(line: bytes, where: str) -> str | BadRow:
    try:
        text = line.decode("utf-8-sig" if where == "line 1" else "utf-8")
    except UnicodeDecodeError:
        return BadRow(where, "it is not UTF-8 text, or too long for a row")
    return BadRow(where, "it holds the character NUL, which no text does") if "\0" in text else text


def _value(line: bytes, where: str) -> Row | BadRow:
    text = _decoded(line, where)
    if isinstance(text, BadRow):
        return text
    try:
        return Row(where, json.loads(text))
    except (ValueError, RecursionError) as error:
        return BadRow(where, f"it is not JSON ({_short(error)})")


def _short(error: BaseException) -> str:
    # Where in the line it is says little; the line itself is named already.
    text = (error.msg if isinstance(error, json.JSONDecodeError) else str(error)).splitlines()
    return (text[0] if text else type(error).__name__)[:120]
