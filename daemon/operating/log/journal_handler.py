"""Writes the log's records into systemd's journal, each under its own priority."""

from __future__ import annotations

import logging

from daemon.system.journald import ERROR, JournalStream

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, ERROR), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG = 7


class JournalHandler(logging.Handler):
    """Writes records into the journal, each under its own priority."""

    def __init__(self, stream: JournalStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging, under the handler's lock."""
        try:
            self._stream.write_line(self.format(record), _priority_of(record.levelno))
        except OSError:
            pass  # there is no other place to name it, and the work goes on
        except Exception:
            self.handleError(record)


def _priority_of(level: int) -> int:
    """The syslog priority of a level of `logging`."""
    return next((priority for least, priority in _PRIORITIES if level >= least), _DEBUG)
