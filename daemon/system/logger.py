"""The logger of a module: structlog's, which is imported with the first message. To import it takes longer than `ckptd status` may."""

from __future__ import annotations

from typing import Any


class Logger:
    """Passes everything on to structlog's logger of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        """`info`, `warning` and the others."""
        import structlog

        return getattr(structlog.get_logger(self._name), method)
