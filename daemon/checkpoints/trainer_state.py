"""Trainer's trainer_state.json: read in memory of a fixed size, held against the directory's name, and what of it is used or shown.

Of its log, which grows with every step, only the end is kept: a log of some hundred thousand steps is a file of 100 MB, and six times that
as Python's objects. The values are parsed one by one by Python's own parser, since trainers write NaN and Infinity, which other parsers
refuse. The step is needed; the rest is for display and for the choice of the best: what does not have its type there is left out, since it
says nothing about the weights. What is given out can be written into a journal and a report.
"""

from __future__ import annotations

import codecs
import io
import itertools
import json
import math
import os
import re
import time
from collections import deque
from pathlib import Path
from typing import Any

from daemon.checkpoints.completeness import read_object
from daemon.checkpoints.files import TRAINER_STATE, Look, absent
from daemon.contract.disk.files import check_values, open_plain
from daemon.contract.values import Json

HISTORY = "log_history"
LOSSES = 500
"""The last rows with a loss that are kept; of the others the last one with an evaluation."""
MOST = 1 << 30
"""Bytes of a file that is read at all: a log of some million steps."""
WHOLE = 1 << 20
"""Bytes of a file that is parsed as a whole."""
GIVE_WAY_SECONDS = 0.0001
"""After each call of the parser for rows other threads may go on, which wait up to 5 ms for the interpreter otherwise, at each call of the
system. (A shorter `sys.setswitchinterval` does the same, but lets threads that are told to give way wait on glibc's condition variables,
whose bug 25847 loses a wake-up now and then: a process at rest then stays so.)"""
_WINDOW = 1 << 20
_MOST_VALUE = 8 << 20
_MOST_KEPT, _MOST_KEYS = 16 << 20, 10_000
MOST_VALUES = 100_000
"""Values in one value of the object, and in one row of the log, which has some dozens."""
_PARSED = 1 << 16
"""Characters of the log's rows that are parsed in one call."""
_LONGEST_NUMBER = 32
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()
MOST_STEPS = 10**12
"""More than any name of a checkpoint can say."""
_EVALUATIONS = 100
_LONGEST_TEXT = 4096


def claims_of(look: Look, named: int | None, missing: list[str], *, required: bool) -> tuple[Json | None, int | None, bool]:
    """Return the parsed state, its step, and whether the trainer claims to be done; add to `missing` what is wrong with it.

    `named`: the step by the directory's name. `required`: the trainer writes it last, so that without it the checkpoint is not whole.
    """
    if TRAINER_STATE not in look.names:
        if required:
            missing.append(absent(look.path, TRAINER_STATE, why=", which the trainer writes last, is not there yet"))
        return None, None, False
    state = read_object(look.path, TRAINER_STATE, missing, read)
    if state is None:
        return None, None, False
    step = step_in(state)
    if step is None:
        missing.append(f"{TRAINER_STATE} has no global_step")
        return state, None, False
    if named is not None and step != named:
        missing.append(f"{TRAINER_STATE} belongs to step {step}, but the directory to step {named}")
        return state, named, False
    return state, step, True


def step_in(state: Json, key: str = "global_step") -> int | None:
    """A number of steps; None where the state has none there that is one."""
    step = state.get(key)
    return step if type(step) is int and 0 <= step <= MOST_STEPS else None


def training_metadata(state: Json) -> dict[str, Any]:
    """What training recorded, each part only where it has its type: progress, best checkpoint, losses, the latest evaluation."""
    logged = state.get(HISTORY)
    history = [row for row in logged if isinstance(row, dict)] if isinstance(logged, list) else []
    losses = [[row["step"], row["loss"]] for row in history if _is_number(row.get("loss")) and _is_number(row.get("step"))]
    metadata: dict[str, Any] = {
        "epoch": _number(state, "epoch"),
        "max_steps": step_in(state, "max_steps"),
        "best_metric": _number(state, "best_metric"),
        "best_model_checkpoint": _text(state, "best_model_checkpoint"),
        "best_global_step": step_in(state, "best_global_step"),
        "loss_history": losses[-LOSSES:],
        "loss": losses[-1][1] if losses else None,
    }
    evaluations = [row for row in history if any(isinstance(key, str) and key.startswith("eval_") for key in row)]
    if evaluations:
        rows = [(key, value) for key, value in evaluations[-1].items() if key.startswith("eval_") and _is_text(key) and _is_number(value)]
        metadata["evaluation"] = dict(rows[:_EVALUATIONS]) or None
    return {key: value for key, value in metadata.items() if value is not None}


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


def _number(state: Json, key: str) -> int | float | None:
    value = state.get(key)
    return value if _is_number(value) else None


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a journal, a report and a chart can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300 and math.isfinite(value)


def _text(state: Json, key: str) -> str | None:
    value = state.get(key)
    return value if isinstance(value, str) and _is_text(value) else None


def _is_text(value: str) -> bool:
    """Whether it is short text that can be written as UTF-8: JSON can say halves of surrogate pairs."""
    return len(value) <= _LONGEST_TEXT and not any("\ud800" <= character <= "\udfff" for character in value)


def _end_of(text: _Text) -> list[Any]:
    losses: deque[tuple[int, Any]] = deque(maxlen=LOSSES)
    evaluation: list[tuple[int, Any]] = []
    text.take("[")
    place = 0
    while text.next() != "]":
        time.sleep(GIVE_WAY_SECONDS)
        if place:
            text.take(",")
        for row in text.objects() or [text.value()]:
            if isinstance(row, dict):
                if "loss" in row:
                    losses.append((place, _scalars(row)))
                if any(key.startswith("eval_") for key in row):
                    evaluation = [(place, _scalars(row))]
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
        self._singly = 0
        """Characters from which no part was found that ends where a value does, and which are read value by value."""

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
            self._singly -= self.length
            return value

    def objects(self) -> list[Any]:
        """The next values of a list, as many as end with an object in what is read and are parsed in one call; [] where that is not so.

        Python's parser is at its fastest with whole texts. Part of a list that is itself the inside of a list holds the list's own values,
        since JSON is read from left to right; and a value that ends with a brace does not go on behind it.
        """
        self.next()
        end = self._text.rfind("},", self._at, self._at + _PARSED) + 1
        if self._singly > 0 or not end:
            return []
        try:
            values: list[Any] = json.loads(f"[{self._text[self._at : end]}]")
        except ValueError:  # the brace stands within a value
            self._singly = _PARSED
            return []
        self._at = end
        return values

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
