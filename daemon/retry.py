"""The retry policy, in its one place: what becomes of a stage after an attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass

from daemon.contract import Outcome, StageResult

MAX_DELAY = 3600.0


@dataclass(frozen=True)
class Decision:
    """The stage's next state, and how long it waits before the next attempt, in seconds."""

    state: str
    delay: float | None = None


def decide(result: StageResult, failures: int, attempts_allowed: int, base_delay: float, jitter: random.Random) -> Decision:
    """`failures`: retryable outcomes before this one. Backoff doubles from `base_delay`, with up to a quarter of jitter."""
    if result.outcome == Outcome.SUCCEEDED:
        return Decision("succeeded")
    if result.outcome == Outcome.INTERRUPTED:
        return Decision("waiting")
    if result.outcome == Outcome.PERMANENT or failures + 1 >= attempts_allowed:
        return Decision("failed")
    delay = result.retry_after if result.retry_after is not None else base_delay * 2.0**failures
    return Decision("waiting", min(delay, MAX_DELAY) * (1 + 0.25 * jitter.random()))
