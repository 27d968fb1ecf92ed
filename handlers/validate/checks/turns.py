"""Decoding speed, measured in turns: the box is shared, so only neighbouring runs can be compared.

Called by the stage `speed`. Each round times both workers one right after the other, and the order alternates from
round to round; the ratio is the median over rounds, so that a burst of other work spoils one round and not the verdict.
Tokens are those that a language model or an encoder-decoder decodes, and those that an encoder reads.
"""

from __future__ import annotations

import statistics

from daemon.contract.jobs.figures import Speed
from handlers.validate.checks.reference import Reference
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Time, Timing

ROUNDS, MOST_ROUNDS = 3, 9
ENOUGH_SECONDS = 3.0
"""Time after which no round is added: those of a small model are short, and each of them says little."""
_WARM_UP_TOKENS = 4
_NOTHING = {"pytorch_tokens_per_second": None, "speed_over_pytorch": None, "speed_over_pytorch_range": None}
"""Where there is nothing to compare with."""


def alone(worker: EngineWorker, reference: Reference) -> Speed:
    """`tokens_per_second` and `prefill_seconds` of one worker, medians over rounds; None where speed is not measured."""
    if not reference.speed_tokens:
        return Speed(tokens_per_second=None, prefill_seconds=None)
    _time(worker, reference, _WARM_UP_TOKENS)
    return _summary([_time(worker, reference) for _ in range(ROUNDS)])


def race(artifact: EngineWorker, pytorch: EngineWorker | None, reference: Reference) -> tuple[Speed, WorkerFailed | None]:
    """Speed of `artifact` beside that of `pytorch`; the second value is the failure of `pytorch`, if it failed.

    Raises WorkerFailed when `artifact` fails.
    """
    if pytorch is None or not reference.speed_tokens:
        return alone(artifact, reference).plus(**_NOTHING), None
    mine, theirs = list[Timing](), list[Timing]()
    _time(artifact, reference, _WARM_UP_TOKENS)
    for number in range(MOST_ROUNDS):
        if number >= ROUNDS and sum(one.decode_seconds for one in (*mine, *theirs)) > ENOUGH_SECONDS:
            break
        if number % 2 == 0:
            mine.append(_time(artifact, reference))
        try:
            theirs.append(_time(pytorch, reference))
        except WorkerFailed as error:
            return alone(artifact, reference).plus(**_NOTHING), error
        if number % 2:
            mine.append(_time(artifact, reference))
    ratios = [b.decode_seconds / a.decode_seconds for a, b in zip(mine, theirs, strict=True)]
    peer = _summary(theirs).tokens_per_second
    figures = _summary(mine).plus(pytorch_tokens_per_second=peer, speed_over_pytorch=statistics.median(ratios))
    return figures.plus(speed_over_pytorch_range=(min(ratios), max(ratios))), None


def _time(worker: EngineWorker, reference: Reference, tokens: int | None = None) -> Timing:
    return worker.ask(Time(rows=[reference.speed_prompt], tokens=reference.speed_tokens if tokens is None else tokens))


def _summary(rounds: list[Timing]) -> Speed:
    return Speed(
        tokens_per_second=rounds[0].tokens / statistics.median(one.decode_seconds for one in rounds),
        prefill_seconds=statistics.median(one.prefill_seconds for one in rounds),
    )
