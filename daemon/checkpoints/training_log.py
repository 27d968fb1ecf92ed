"""Reads a trainer_state.json of any length in memory of a fixed size: of its log, which grows with every step, only the end is kept.

A log of some hundred thousand steps is a file of 100 MB, and six times that as Python's objects. The values are parsed one by one by
Python's own parser, since trainers write NaN and Infinity, which JSON does not have and other parsers refuse.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import os
import re
import time
from collections import deque
from pathlib import Path
from typing import Any

from daemon.contract.files import check_values, open_plain

HISTORY = "log_history"
LOSSES = 500
"""The last rows with a loss that are kept; of the others the last one with an evaluation."""
MOST = 1 << 30
"""Bytes of a file that is read at all: a log of some million steps."""
WHOLE = 1 << 20
"""Bytes of a file that is parsed as a whole."""
ROWS, GIVE_WAY_SECONDS = 64, 0.0001
"""After so many rows other threads may go on, which wait up to 5 ms for the interpreter otherwise, at each call of the system. (A shorter
`sys.setswitchinterval` does the same, but lets threads that are told to give way wait on glibc's condition variables, whose bug 25847
loses a wake-up now and then: a process at rest then stays so.)"""
_WINDOW = 1 << 20
_MOST_VALUE = 8 << 20
_MOST_KEPT, _MOST_KEYS = 16 << 20, 10_000
_LONGEST_TEXT = 4096
MOST_VALUES = 1_000_000
"""Values in one value of the object: a row of the log has some dozens."""
_LONGEST_NUMBER = 32
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def read(path: Path) -> Any:
    """The JSON value in a file; of a long object's `log_history` the last rows alone. OSError; ValueError or RecursionError for what is no
    JSON, no regular file, or too long."""
    with open_plain(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MOST:
            raise ValueError(f"it has {size:,} bytes, more than the {MOST:,} that are read")
        if size <= WHOLE:
            return json.loads(stream.read(WHOLE))
        return read_long(stream)


def read_long(stream: io.BufferedReader | io.BytesIO, window: int = _WINDOW) -> Any:
    """The JSON value in a stream of UTF-8, read `window` bytes at a time; of its `log_history` the last rows alone."""
    text = _Text(stream, window)
    if text.next() != "{":
        raise ValueError("it is not a JSON object")
    values: dict[str, Any] = {}
    kept = 0
    text.take("{")
    while text.next() != "}":
        if values:
            text.take(",")
        key = text.value()
        if not isinstance(key, str):
            raise ValueError("a key is not a string")
        text.take(":")
        if key == HISTORY and text.next() == "[":
            values[key] = _end_of(text)
            continue
        values[key] = text.value()
        kept += len(key) + text.length
        if kept > _MOST_KEPT or len(values) > _MOST_KEYS:
            raise ValueError(f"beside its {HISTORY} it holds more than {_MOST_KEPT:,} characters or {_MOST_KEYS:,} names")
    text.take("}")
    if text.next():
        raise ValueError("there is more text after the object")
    return values


def _end_of(text: _Text) -> list[Any]:
    losses: deque[tuple[int, Any]] = deque(maxlen=LOSSES)
    evaluation: list[tuple[int, Any]] = []
    text.take("[")
    place = 0
    while text.next() != "]":
        if place % ROWS == 0:
            time.sleep(GIVE_WAY_SECONDS)
        if place:
            text.take(",")
        row = text.value()
        if isinstance(row, dict):
            row = _scalars(row)
            if "loss" in row:
                losses.append((place, row))
            if any(key.startswith("eval_") for key in row):
                evaluation = [(place, row)]
        place += 1
    text.take("]")
    return [row for _, row in sorted({place: (place, row) for place, row in (*losses, *evaluation)}.values(), key=lambda pair: pair[0])]


def _scalars(row: dict[str, Any]) -> dict[str, Any]:
    """The part of a row that takes little memory, since hundreds are kept: numbers, and short texts."""
    pairs = ((key, value) for key, value in row.items() if len(key) <= _LONGEST_TEXT and not isinstance(value, list | dict))
    return dict(itertools.islice(((key, value) for key, value in pairs if not isinstance(value, str) or len(value) <= _LONGEST_TEXT), 1000))


class _Text:
    """A text of which a part is in memory."""

    def __init__(self, stream: io.BufferedReader | io.BytesIO, window: int) -> None:
        self._stream, self._window = stream, window
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False
        self.length = 0
        """Characters of the last value."""

    def next(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            assert space is not None
            self._at = space.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, expected: str) -> None:
        """Go on after the character that has to come next."""
        if (character := self.next()) != expected:
            raise ValueError(f"{expected!r} was expected, not {character[:1] or 'the end'!r}")
        self._at += 1

    def value(self) -> Any:
        """The next value."""
        self.next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                if len(self._text) - self._at > _MOST_VALUE:
                    raise ValueError(f"a value in it is not JSON, or has more than {_MOST_VALUE:,} characters") from None
                self._check(len(self._text))  # all that is left is of this value
                if not self._more():
                    raise
                continue
            if len(self._text) - end < _LONGEST_NUMBER and not self._ended:
                self._more()
                continue  # a number may go on
            self._check(end)
            self._at, self.length = end, end - self._at
            return value

    def _check(self, end: int) -> None:
        """Raise ValueError where the value here, up to `end`, is long and holds more than MOST_VALUES."""
        if end - self._at > self._window:
            check_values(self._text[self._at : end].encode(errors="surrogatepass"), MOST_VALUES)

    def _more(self) -> bool:
        # What is left is parsed again each time, so that the windows grow with it.
        data = self._stream.read(max(self._window, len(self._text) - self._at))
        self._text, self._at = self._text[self._at :] + self._decoder.decode(data, final=not data), 0
        self._ended = not data
        return not self._ended
