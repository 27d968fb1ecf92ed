"""Decoding speed, measured in turns: the box is shared, so only neighbouring runs can be compared.

Called by the stage `speed`. Each round times both workers one right after the other, and the order alternates from
round to round; the figures are those of the round whose ratio is the median, so that a burst of other work spoils one round
and not the verdict, and both speeds and their ratio fit each other wherever they are shown.
Tokens are those that a language model or an encoder-decoder decodes, and those that an encoder reads.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from daemon.contract.jobs.figures import Speed
from handlers.validate.checks.live.reference import Reference
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Time, Timing

ROUNDS, MANY_ROUNDS = 3, 9
ENOUGH_SECONDS = 0.5
"""Time after which no round is added: those of a small model are short, and each of them says little."""
STEADY, LONG_SECONDS, MOST_ROUNDS = 1.5, 3.0, 27
"""Where ratios are farther apart than that, other work disturbs them: there are rounds for so long, or so many, and their median counts."""
ALIKE, ALIKE_SECONDS = 1.05, 0.4
"""Two rounds or more that took so long together are enough if their ratios are so much alike: on a quiet box more say nothing new."""
ROUND_SECONDS = 0.25
LEAST_TOKENS = 4
"""A round is as many tokens as the slower of both decodes in that time: the tokens of the configuration at most, these at least."""
_WARM_UP_TOKENS = 4
_NOTHING = {"pytorch_tokens_per_second": None, "speed_over_pytorch": None, "speed_over_pytorch_range": None}
"""Where there is nothing to compare with."""


@dataclass(frozen=True)
class Raced:
    """Speed of an artifact; the rounds of PyTorch beside it, and its failure if it failed."""

    speed: Speed
    peer: list[Timing] = field(default_factory=list)
    failed: WorkerFailed | None = None


def alone(worker: EngineWorker, reference: Reference) -> Speed:
    """Give `tokens_per_second` and `prefill_seconds` of one worker, medians over rounds; None where speed is not measured."""
    if not reference.speed_tokens:
        return Speed(tokens_per_second=None, prefill_seconds=None)
    tokens = _paced(reference, _time(worker, reference, _WARM_UP_TOKENS))
    return summary([_time(worker, reference, tokens) for _ in range(ROUNDS)])


@dataclass
class Peer:
    """The model that artifacts are raced with, one after the other."""

    worker: EngineWorker
    pace: Timing | None = None
    """What it decoded last; None before it has decoded anything."""


def race(artifact: EngineWorker, peer: Peer | None, reference: Reference) -> Raced:
    """Give speed of `artifact` beside that of `peer`. Raises WorkerFailed when `artifact` fails."""
    if peer is None or not reference.speed_tokens:
        return Raced(alone(artifact, reference).plus(**_NOTHING))
    mine, theirs = list[Timing](), list[Timing]()
    warm = _time(artifact, reference, _WARM_UP_TOKENS)
    try:
        tokens = _paced(reference, warm, peer.pace or _of_peer(peer, reference, _WARM_UP_TOKENS))
        for number in range(MOST_ROUNDS):
            if _enough(mine, theirs):
                break
            if number % 2 == 0:
                mine.append(_time(artifact, reference, tokens))
            theirs.append(_of_peer(peer, reference, tokens, again=bool(theirs)))
            if number % 2:
                mine.append(_time(artifact, reference, tokens))
    except _PeerFailed as error:
        return Raced(alone(artifact, reference).plus(**_NOTHING), failed=error.why)
    ratios = _ratios(mine, theirs)
    middle = ratios.index(statistics.median_low(ratios))
    figures = summary(mine).plus(
        tokens_per_second=_speed(mine[middle]), pytorch_tokens_per_second=_speed(theirs[middle]), speed_over_pytorch=ratios[middle],
        speed_over_pytorch_range=(min(ratios), max(ratios)),
    )  # fmt: skip
    return Raced(figures, theirs)


def _ratios(mine: list[Timing], theirs: list[Timing]) -> list[float]:
    return [_speed(a) / _speed(b) for a, b in zip(mine, theirs, strict=True)]


def _speed(timing: Timing) -> float:
    return timing.tokens / timing.decode_seconds


def _enough(mine: list[Timing], theirs: list[Timing]) -> bool:
    """Tell whether the rounds so far say enough."""
    seconds, ratios = sum(timing.decode_seconds for timing in (*mine, *theirs)), _ratios(mine, theirs)
    if len(ratios) < 2:
        return False
    apart = max(ratios) / min(ratios)
    if apart <= ALIKE and seconds > ALIKE_SECONDS:
        return True
    if apart > STEADY:
        return len(ratios) >= ROUNDS and seconds + sum(timing.prefill_seconds for timing in mine) > LONG_SECONDS
    return len(ratios) >= MANY_ROUNDS or (len(ratios) >= ROUNDS and seconds > ENOUGH_SECONDS)


class _PeerFailed(Exception):
    def __init__(self, why: WorkerFailed) -> None:
        self.why = why


def _of_peer(peer: Peer, reference: Reference, tokens: int, *, again: bool = False) -> Timing:
    """`again`: its first pass, which is compared with nothing, need not be run once more."""
    try:
        peer.pace = _time(peer.worker, reference, tokens, again=again)
    except WorkerFailed as error:
        raise _PeerFailed(error) from error
    return peer.pace


def _time(worker: EngineWorker, reference: Reference, tokens: int, *, again: bool = False) -> Timing:
    return worker.ask(Time(rows=[reference.speed_prompt], tokens=tokens, again=again))


def _paced(reference: Reference, *warm: Timing) -> int:
    """Give tokens of a round, by how long each of the first ones took."""
    slowest = max(timing.decode_seconds / max(1, timing.tokens) for timing in warm)
    return min(reference.speed_tokens, max(LEAST_TOKENS, int(ROUND_SECONDS / max(slowest, 1e-9))))


def summary(rounds: list[Timing]) -> Speed:
    """Give medians over rounds."""
    return Speed(
        tokens_per_second=statistics.median(map(_speed, rounds)),
        prefill_seconds=statistics.median(timing.prefill_seconds for timing in rounds),
    )
