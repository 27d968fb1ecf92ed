"""What a stage says while it works (`Reporter`) and when it is done (`StageOutput`)."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from daemon.contract import ArtifactCheck, Fallback

MIN_INTERVAL = 0.1


class Reporter:
    """Writes progress as JSON lines: `{"fraction": 0.5, "message": "layer 3 of 6"}`; at most ten a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = 0.0

    def progress(self, fraction: float, message: str) -> None:
        """Say that `fraction` (0 to 1) of the stage is done; a line too soon after the last one is dropped."""
        now = time.monotonic()
        if fraction < 1 and now - self._last < MIN_INTERVAL:
            return
        self._last = now
        self._say({"fraction": round(min(max(fraction, 0.0), 1.0), 4), "message": message})

    def warn(self, message: str) -> None:
        """Say something that people should see in the daemon's log while the stage still runs."""
        self._say({"warning": message})

    def _say(self, value: dict[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(value) + "\n")
            self._stream.flush()
        except OSError:
            # Nobody listens any more: the attempt's outcome goes through the result file, so work goes on.
            pass


@dataclass
class StageOutput:
    """What a stage gives back besides the files in its staging folder."""

    strategy: str = "default"
    figures: dict[str, Any] = field(default_factory=dict)
    """JSON values for the report, with the unit in the key (`_seconds`, `_bytes`)."""
    warnings: list[str] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    checks: list[ArtifactCheck] = field(default_factory=list)
