"""Whether a server answers as the fine-tuned model does: how much of the fine-tuning is in its answers. Pure; shares nothing with the
checks of artifacts.

The export's report.json holds, under `answers`, positions with the log-probabilities that the live model (l) and its base (b) give the most
likely next tokens. The server is asked for its own (s) there. The share is the projection of s - b on l - b, each token weighted by the
mean w of the probabilities that live model and base give it:

    share = Σ w (s - b)(l - b) / Σ w (l - b)²

It is 1 of the live model, 0 of the base, and clearly above 1 of an adapter that is applied twice (up to 2 where that is light; measured
1.2 and 1.4 where it is strong, since probabilities saturate). So it may lie above 1 by no more than below. What a server's lower precision
changes in other directions leaves it where it is: it is the slope of the server's change over the wanted one, through the origin.
What the server does not list among its most likely tokens is known to be below the last one that it lists, and counts as what is
consistent with that.

A server that gives no log-probabilities answers with its first token alone. It is compared where live model and base choose another one,
which tells a missing adapter and another model, and neither how much of an adapter is there nor that it is applied twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from daemon.contract.values import Json

NOTHING = 0.1
"""Share up to which answers are the base's."""
FAR = 1.0
"""Distance from live model and base, in their own distance from each other, from which answers are neither's."""
LIGHT = 1e-4
"""Weighted mean of (l - b)² below which a fine-tuning can't be told from its base by a server's rounding."""
SAME_CHOICE = 0.5
"""Share of positions with the live model's first token that is demanded where no base is known, or no log-probabilities are."""
NOT_TOLD = "the server gives no log-probabilities: how much of the fine-tuning is there, and whether it is applied twice, is not known"

Answer = Mapping[int, float]
"""Token → log-probability of the most likely next tokens."""


@dataclass(frozen=True)
class Position:
    """A question, and what is known of its answer."""

    ids: tuple[int, ...]
    live: Answer
    base: Answer
    """Empty where there is no base."""


@dataclass(frozen=True)
class Judged:
    """What a server's answers are like."""

    share: float | None
    """None where there is no base to compare with, or the fine-tuning is too light."""
    agreement: float
    """Share of positions with the live model's first token."""
    positions: int
    fault: str = ""
    """What they are like, as a clause; "" where they are the fine-tuned model's."""
    not_told: str = ""
    """What can't be known of such answers, as a sentence without a full stop."""

    @property
    def figures(self) -> Json:
        """For the receipt."""
        said = {"share": self.share, "agreement": self.agreement, "positions": self.positions}
        return {**said, "not_told": self.not_told} if self.not_told else said


def positions_of(report: Json) -> tuple[Position, ...]:
    """The questions of an export's report; () where it has none."""
    answers = report.get("answers")
    rows = answers.get("positions") if isinstance(answers, Mapping) else None
    return tuple(
        Position(
            tuple(int(token) for token in row["ids"]), {int(token): float(live) for token, live, _ in row["known"]},
            {int(token): float(base) for token, _, base in row["known"] if base is not None},
        )
        for row in rows or ()
    )  # fmt: skip


def judge(positions: Sequence[Position], answers: Sequence[Answer], least: float, before: Sequence[Answer] | None = None) -> Judged:
    """Compare a server's answers. `least`: the share that must be there; `before`: what it answered before it loaded the model, by which
    answers of an older version are known."""
    asked = len(positions)
    pairs = [pair for pair in zip(positions, answers, strict=True) if pair[1]]
    if 2 * len(pairs) < asked:
        return Judged(None, 0.0, len(pairs), f"it answers at only {len(pairs)} of {asked} positions")
    if pairs and all(len(answer) == 1 for _, answer in pairs):
        return _by_choice(pairs)
    agreement = sum(_first(answer) == _first(position.live) for position, answer in pairs)
    agreement_share = agreement / max(1, len(pairs))
    rows = [row for position, answer in pairs for row in _rows(position, answer)]
    weight = sum(row[0] for row in rows)
    there = sum(w * (live - base) ** 2 for w, live, base, _ in rows)
    if not weight or there / weight < LIGHT:
        fault = "" if agreement_share >= SAME_CHOICE else f"only {agreement_share:.0%} of its first tokens are the fine-tuned model's"
        return Judged(None, agreement_share, len(pairs), fault)
    share = sum(w * (said - base) * (live - base) for w, live, base, said in rows) / there
    from_live = math.sqrt(sum(w * (said - live) ** 2 for w, live, _, said in rows) / there)
    from_base = math.sqrt(sum(w * (said - base) ** 2 for w, _, base, said in rows) / there)
    fault = ""
    if not least <= share <= 2 - least or from_live > FAR:
        fault = _like(share, from_live, from_base, stale=before is not None and _same(answers, before))
    return Judged(share, agreement_share, len(pairs), fault)


def _by_choice(pairs: Sequence[tuple[Position, Answer]]) -> Judged:
    """The verdict over first tokens alone."""
    telling = [
        (position, answer) for position, answer in pairs if position.base and _first(position.live) != _first(position.base)
    ] or pairs
    mine = sum(_first(answer) == _first(position.live) for position, answer in telling)
    theirs = sum(_first(answer) == _first(position.base) for position, answer in telling if position.base)
    agreement, fault = mine / len(telling), ""
    if theirs > mine and theirs >= SAME_CHOICE * len(telling):
        fault = "it answers as the base does: the adapter is not applied"
    elif agreement < SAME_CHOICE:
        fault = f"only {agreement:.0%} of its first tokens are the fine-tuned model's"
    return Judged(None, agreement, len(telling), fault, NOT_TOLD)


def _like(share: float, from_live: float, from_base: float, *, stale: bool) -> str:
    """What wrong answers are like, as a clause."""
    if from_base <= NOTHING or (abs(share) <= NOTHING and from_base < FAR / 2):
        return f"it answers as the base does ({share:.2f} of the fine-tuning is in its answers): the adapter is not applied"
    if stale:
        return f"it answers as it did before, so it serves an older version ({share:.2f} of this one is in its answers)"
    if share > 1 and from_live < FAR:
        return f"the adapter is applied more than once ({share:.2f} of the fine-tuning is in its answers)"
    if min(from_live, from_base) > FAR:
        return f"it answers as neither the fine-tuned model nor its base ({share:.2f} of the fine-tuning is in its answers)"
    return (
        f"only {share:.2f} of the fine-tuning is in its answers"
        if share < 1
        else f"its answers change {share:.2f} times as much as they should"
    )


def _rows(position: Position, answer: Answer) -> Iterator[tuple[float, float, float, float]]:
    """(weight, live, base, server) of the tokens that say something."""
    floor = min(answer.values(), default=0.0)
    for token, live in position.live.items():
        base = position.base.get(token)
        if base is None:
            continue
        said = answer.get(token)
        if said is None:
            if max(live, base) <= floor:
                continue
            said = min(floor, live, base)
        yield (math.exp(live) + math.exp(base)) / 2, live, base, said


def _first(answer: Answer) -> int | None:
    return max(answer, key=lambda token: (answer[token], -token), default=None)


def _same(answers: Sequence[Answer], before: Sequence[Answer]) -> bool:
    """Whether two rounds of answers are one model's."""
    pairs = [(mine[token], theirs[token]) for mine, theirs in zip(answers, before, strict=True) for token in mine.keys() & theirs.keys()]
    return bool(pairs) and max(abs(mine - theirs) for mine, theirs in pairs) < 1e-3
