"""Collects the warnings of libraries during an export: each message once, and a limited number of them.

Called by the ONNX stages. Python warnings and log records of the exporter's libraries are collected for the report; each of them is still
written once to the attempt's log. The tracer's warnings are kept separately, by their place in the code, since `tracer_warnings` judges
them.
"""

from __future__ import annotations

import logging
import sys
import warnings
from types import TracebackType
from typing import Any

from handlers.families.base import Family
from handlers.families.warnings import tracer_warnings

LIMIT = 10
WIDTH = 240
LOGGERS = ("torch", "transformers", "onnxscript", "onnx_ir", "onnxruntime")

# These appear in every export, whatever the model, so they are of no use in the report.
UNINFORMATIVE = (
    "torchvision is not installed",
    "is deprecated",
    "legacy TorchScript-based ONNX export",
    "will be removed",
)


class LibraryWarnings(logging.Handler):
    """Context manager that collects warnings and log records of level WARNING and above into `lines`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._counts: dict[str, int] = {}
        self._catcher = warnings.catch_warnings()
        self.traced: dict[tracer_warnings.Origin, int] = {}
        """Where the tracer warned → how often."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a log record (called by logging)."""
        self._count(record.getMessage())

    def __enter__(self) -> LibraryWarnings:
        self._catcher.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._show
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
        self._catcher.__exit__(kind, error, trace)

    @property
    def lines(self) -> list[str]:
        """At most LIMIT distinct messages, in the order of their first appearance, each with its number of occurrences; a last line counts
        the rest."""
        shown = [text for text in self._counts if not any(phrase in text for phrase in UNINFORMATIVE)]
        lines = [text if self._counts[text] == 1 else f"{text} ({self._counts[text]} times)" for text in shown[:LIMIT]]
        if len(shown) > LIMIT:
            lines.append(f"{len(shown) - LIMIT} more kinds of warning are in the attempt's log")
        return lines

    def _show(self, message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        if category.__name__ == tracer_warnings.CATEGORY:
            place = tracer_warnings.origin(filename, lineno, str(message))
            if place not in self.traced:
                print(f"{tracer_warnings.CATEGORY} at {place}: {' '.join(str(message).split())}"[:WIDTH], file=sys.stderr)
            self.traced[place] = self.traced.get(place, 0) + 1
        else:
            self._count(f"{category.__name__}: {message}")

    def _count(self, message: str) -> None:
        text = " ".join(message.split())[:WIDTH]
        if text not in self._counts:
            print(text, file=sys.stderr)
        self._counts[text] = self._counts.get(text, 0) + 1


def report_lines(chatter: LibraryWarnings, family: Family, reference: Any) -> list[str]:
    """The report's lines, once the family's check has passed: the tracer's warnings with what was tried, then those of the libraries."""
    judged = tracer_warnings.judge(chatter.traced, family.tested(reference), getattr(reference, "untested", ""))
    return [*tracer_warnings.summary(judged, LIMIT), *chatter.lines]
