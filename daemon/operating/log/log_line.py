"""A record of the log as a line for people: the same on the daemon's terminal and in `ckptd logs`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from daemon.contract.faults.text import local_time, printable, printable_lines
from daemon.contract.values import Json
from daemon.operating.log.wrapping import fold, width_of

LEVEL_STYLE = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red", "critical": "bold red"}
_APART = ("timestamp", "level", "event", "message", "logger", "exception", "job")
_FOR_PROGRAMS = ("id",)
"""What is written for programs alone, such as the executor's name of an attempt."""
_WHERE = ("run", "step", "stage", "attempt")


def log_line(record: Json) -> Text:
    """When, how grave, the sentence, which export, and what else the record says."""
    rest = {key: value for key, value in record.items() if key not in _APART}
    level = str(record.get("level", "info"))
    where = " ".join(f"{key}={printable(str(rest.pop(key)))}" for key in _WHERE if key in rest)
    details = " ".join(f"{printable(key)}={printable(str(value))}" for key, value in rest.items() if value is not None)
    line = Text(printable(local_time(str(record.get("timestamp", "")), "seconds")), "dim")
    line.append(f" {printable(level):<7} ", style="default not dim")
    line.append(printable(str(record.get("message", record.get("event", "")))), f"not dim {LEVEL_STYLE.get(level, '')}".strip())
    for text, style in ((where, "not dim cyan"), (details, "dim")):
        if text:
            line.append(f" {text}", style)
    if record.get("exception"):
        line.append(f"\n{printable_lines(str(record['exception']))}", "not dim")
    return line


def log_lines(record: Json, width: int | None) -> list[Text]:
    """The same for a terminal of `width` cells: broken between words, without what programs alone need. None: in one line, whole."""
    if width is None:
        return [log_line(record)]
    shown = {key: said for key, value in record.items() if key not in _FOR_PROGRAMS and (said := _plain(value)) != ""}
    return fold(log_line(shown), width)


def _plain(value: Any) -> Any:
    """A value as words: `a (b), c (d)` for a mapping, `a, b` for a list."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({_plain(item)})" for key, item in value.items() if item not in (None, "", {}, []))
    return ", ".join(str(_plain(item)) for item in value) if isinstance(value, list | tuple) else value


class Readable:
    """Renders a record of structlog so; with the colours of a terminal or without any."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: Any, _name: str, record: Any) -> str:
        """The line."""
        if not self._colors:
            return log_line(record).plain
        stream = io.StringIO()
        shown = Console(file=stream, force_terminal=True, color_system="standard", soft_wrap=True, highlight=False)
        for line in log_lines(record, width_of(Console(stderr=True))):
            shown.print(line)
        return stream.getvalue().rstrip("\n")
