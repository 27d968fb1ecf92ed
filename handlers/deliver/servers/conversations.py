"""Whether a server writes a conversation as the model's own chat template does: asked by messages it must answer as it answers the tokens
that the template makes of them. Pure.

The export's report.json holds, under `answers`, a few conversations with those tokens. Both answers are the server's own, so that its
precision, and what the model has learnt, are the same in both, and what differs is the template.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daemon.contract.values import Json

APART = 0.1
"""Nats between both answers, weighted by the mean of the probabilities that they give each token, from which they are two."""


@dataclass(frozen=True)
class Conversation:
    """Messages, and the tokens that the template makes of them, with what begins the answer."""

    messages: tuple[Mapping[str, str], ...]
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Reply:
    """What a server says of the first token that it would answer."""

    answer: Mapping[int, float] | Mapping[str, float]
    """By the token, or by its text."""
    tokens: int | None = None
    """Tokens that it made of the conversation, where it says so."""


def conversations_of(report: Json) -> tuple[Conversation, ...]:
    """The conversations of an export's report; () where it has none."""
    answers = report.get("answers")
    rows = answers.get("conversations") if isinstance(answers, Mapping) else None
    return tuple(
        Conversation(
            tuple({str(key): str(value) for key, value in message.items()} for message in row["messages"]), tuple(map(int, row["ids"])),
        )
        for row in rows or ()
    )  # fmt: skip


def difference(conversation: Conversation, plain: Mapping[Any, float], reply: Mapping[Any, float], tokens: int | None) -> str:
    """Why the server's chat template is not the model's, as a clause; "" where nothing speaks against it. `plain`: its answer to the
    tokens, `reply`: to the messages."""
    count = len(conversation.ids)
    other = f": it makes {tokens} tokens of one for which the model's makes {count}" if tokens is not None and tokens != count else ""
    words = len(plain) == len(reply) == 1
    if (words and (other or plain.keys() != reply.keys())) or (not words and apart(plain, reply) > APART):
        return f"it writes conversations by another chat template than the model's{other}"
    return ""


def apart(plain: Mapping[Any, float], reply: Mapping[Any, float]) -> float:
    """How far two answers are from each other, in nats; what one of them does not list is at most its last one."""
    if not plain or not reply:
        return 0.0
    floors = min(plain.values()), min(reply.values())
    total = 0.0
    for token in {*plain, *reply}:
        mine, theirs = plain.get(token), reply.get(token)
        if mine is None:
            mine = min(floors[0], theirs if theirs is not None else floors[0])
        if theirs is None:
            theirs = min(floors[1], mine)
        total += (math.exp(mine) + math.exp(theirs)) / 2 * abs(mine - theirs)
    return total
