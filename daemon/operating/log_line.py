"""A record of the log as a line for people: the same on the daemon's terminal and in `ckptd logs`."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.text import Text

from daemon.contract.text import local_time, printable, printable_lines
from daemon.contract.values import Json

LEVEL_STYLE = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red", "critical": "bold red"}
_APART = ("timestamp", "level", "event", "message", "logger", "exception", "job")
_WHERE = ("run", "step", "stage", "attempt")


def log_line(record: Json) -> Text:
    """When, how grave, the sentence, which export, and what else the record says. Logs of earlier versions have the sentence as `event`."""
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


class Readable:
    """Renders a record of structlog so; with the colours of a terminal or without any."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: Any, _name: str, record: Any) -> str:
        """The line."""
        if not self._colors:
            return log_line(record).plain
        stream = io.StringIO()
        Console(file=stream, force_terminal=True, color_system="standard", soft_wrap=True, highlight=False).print(log_line(record))
        return stream.getvalue().rstrip("\n")
