"""What a stage says while it works (`Reporter`) and when it is done (`StageOutput`)."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from daemon.contract.jobs.messages import ArtifactCheck, Fallback
from daemon.contract.values import Json

MIN_INTERVAL = 0.1
HEARTBEAT_SECONDS = 5.0


class Interrupted(BaseException):
    """The stage was told to stop and has come to a safe point.

    No `Exception`, so that a stage which tries one way after the other doesn't take it for a way that failed.
    """


@dataclass
class StopFlag:
    """Whether the stage was told to stop. A plain field, since a signal handler sets it: a lock there could be held already."""

    asked: bool = False


class Reporter:
    """Writes progress as JSON lines: `{"fraction": 0.5, "message": "layer 3 of 6"}`; at most ten a second."""

    def __init__(self, stream: TextIO, stop: StopFlag | None = None) -> None:
        self._stream = stream
        self._stop = stop or StopFlag()
        self._last = 0.0
        self._lock = threading.Lock()

    def progress(self, fraction: float, message: str) -> None:
        """Say that `fraction` (0 to 1) of the stage is done; a line too soon after the last one is dropped. A safe point."""
        self.checkpoint()
        now = time.monotonic()
        if fraction < 1 and now - self._last < MIN_INTERVAL:
            return
        self._last = now
        self._say({"fraction": round(min(max(fraction, 0.0), 1.0), 4), "message": message})

    def checkpoint(self) -> None:
        """A safe point between two units of work: raises Interrupted when the stage was told to stop."""
        if self._stop.asked:
            raise Interrupted

    def warn(self, message: str) -> None:
        """Say something that people should see in the daemon's log while the stage still runs."""
        self._say({"warning": message})

    def start_heartbeat(self, seconds: float = HEARTBEAT_SECONDS) -> None:
        """Say every so many seconds, from a thread of its own, that the interpreter still runs. Must be called before any fork."""
        threading.Thread(target=self._beat, args=(seconds,), name="heartbeat", daemon=True).start()

    def _beat(self, seconds: float) -> None:
        count = 0
        while True:
            self._say({"heartbeat": count})
            count += 1
            time.sleep(seconds)

    def _say(self, value: Json) -> None:
        try:
            with self._lock:
                self._stream.write(json.dumps(value) + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            # Nothing reads the stream any more: the attempt's outcome goes through the result file, so work goes on.
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
    reusable: bool = True
    """False where the box may have decided it (a model's process that was killed): another export must not take it over."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 by relative path of finished files that were read for it already, so that sealing need not read them again."""
