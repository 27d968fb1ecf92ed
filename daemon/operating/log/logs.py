"""Structured logs: JSON lines to a file and to stderr, readable colours where stderr is a terminal.

structlog renders, the standard library's handlers carry, so that watchdog's and APScheduler's own messages come
out in the same form. Where stderr is systemd's journal each line has its priority. `reading.py` reads the file back.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import structlog

from daemon.config.settings import LogSettings
from daemon.contract.faults.events import Event
from daemon.contract.faults.secrets import censored, censored_values
from daemon.operating.log.journal_handler import JournalHandler
from daemon.operating.log.log_line import Readable
from daemon.system.journald import JournalStream

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
_NOISY = ("apscheduler", "watchdog", "apprise", "urllib3", "asyncio")
TRACEBACK_LIMIT = 6000
"""journald splits long lines, so a traceback in a line is bounded."""
MOST_BYTES = 50 << 20
"""Of the log file, months of a quiet daemon; a fuller one begins the next."""
OLD_FILES = 5
"""That are kept beside it."""


def _bound_traceback(_logger: Any, _name: str, event: dict[str, Any]) -> dict[str, Any]:
    text = event.get("exception")
    if isinstance(text, str) and len(text) > TRACEBACK_LIMIT:
        event["exception"] = "…" + text[-TRACEBACK_LIMIT:]
    return event


def _censored(_logger: Any, _name: str, event: dict[str, Any]) -> dict[str, Any]:
    """The record without secrets, whoever brought one into it."""
    return {key: censored_values(value) if censored(said := repr(value)) != said else value for key, value in event.items()}


def _named(_logger: Any, _name: str, event: dict[str, Any]) -> dict[str, Any]:
    """The record with the event's id as `event` and its sentence as `message`; what libraries say has one id."""
    sentence, name = event.pop("event", ""), event.pop("event_id", Event.LIBRARY)
    return {"event": str(name), "message": sentence, **event}


def _formatter(renderer: Any) -> logging.Formatter:
    tail: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _bound_traceback,
        _censored,
        _named,
    ]
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=_SHARED, processors=[*tail, renderer])


class _Stream(logging.StreamHandler[Any]):
    """Writes to stderr. Says nothing where that can't be written: the library would print a traceback there."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Handle an error of `emit`. Where stderr itself can't be written nothing is said, and the work goes on."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


class _Rotating(logging.handlers.RotatingFileHandler):
    """Says once on stderr that the file can't be written; the library would print a traceback for each record.

    Both may lie on the same full disk: no error of that reaches the code that logs.
    """

    said = False

    def _open(self) -> TextIOWrapper:
        """As the library's, for a file that is its owner's alone, as the state directory is."""
        return open(
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors,
            opener=lambda path, flags: os.open(path, flags, 0o600),
        )  # fmt: skip

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Handle an error of `emit`."""
        if not self.said:
            error = sys.exc_info()[1]
            with contextlib.suppress(OSError):
                print(f"ckptd: Could not write the log ({self.baseFilename}): {error}. Fix: free space there or give access; "
                      "all lines are also in stderr.", file=sys.stderr)  # fmt: skip
        self.said = True

    def flush(self) -> None:
        """Called after each record. Raises OSError while the file can't be written, which `emit` hands to `handleError`."""
        super().flush()
        if self.stream is not None:
            self.said = False


def set_up(settings: LogSettings, file: Path | None, *, stderr: bool = True) -> None:
    """Send logs to `file` (JSON, rotated by size) and, unless told otherwise, to stderr."""
    handlers: list[logging.Handler] = []
    handler: logging.Handler
    as_json = _formatter(structlog.processors.JSONRenderer(ensure_ascii=True))
    if stderr:
        handler = JournalHandler(sys.stderr) if isinstance(sys.stderr, JournalStream) else _Stream(sys.stderr)
        console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
        handler.setFormatter(_formatter(Readable(colors=sys.stderr.isatty())) if console else as_json)
        handlers.append(handler)
    if file is not None:
        rotating = _Rotating(file, maxBytes=MOST_BYTES, backupCount=OLD_FILES, encoding="utf-8")
        rotating.setFormatter(as_json)
        handlers.append(rotating)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        with contextlib.suppress(OSError):  # the disk may be full
            old.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(settings.level.upper())
    logging.captureWarnings(True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level, *_SHARED, structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )  # fmt: skip


def say_closed(sentences: Iterable[str]) -> None:
    """Log what others could read of the state, and now can't."""
    for sentence in sentences:
        structlog.get_logger("daemon").warning(sentence, event_id=Event.STATE_CLOSED)
