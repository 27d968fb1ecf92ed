"""What it changes that llama.cpp reads a chat otherwise than the model's tokenizer: the file itself answers to both readings.

Runs inside the toolchain `gguf`.
"""

from __future__ import annotations

from collections.abc import Sequence

from handlers.gguf.llama import library

ANSWER = 16
"""Tokens of an answer that are compared."""


def agreement(model: library.Model, chats: Sequence[tuple[list[int], list[int]]], threads: int) -> float:
    """Return the share of the answers' tokens that llama.cpp's reading leaves as they are.

    `chats`: the token ids of each as the model's tokenizer reads it, and as llama.cpp does.
    """
    context = library.Context(model, max(len(ids) for pair in chats for ids in pair) + ANSWER, 1, threads)
    try:
        same = total = 0
        for wanted, read in chats:
            answer = _answer(context, wanted, model.end_tokens())
            context.forget()
            rows = context.run([(token, place, 0) for place, token in enumerate([*read, *answer[:-1]])])
            same += sum(int(row.argmax()) == token for row, token in zip(rows[len(read) - 1 :], answer, strict=True))
            total += len(answer)
    finally:
        context.close()
    return same / total


def _answer(context: library.Context, ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the most likely tokens behind `ids`, with the end if it comes."""
    context.forget()
    new, answer, place = list(ids), list[int](), 0
    while len(answer) < ANSWER and not (answer and answer[-1] in ends):
        rows = context.run([(token, place + at, 0) for at, token in enumerate(new)])
        place += len(new)
        new = [int(rows[-1].argmax())]
        answer += new
    return answer
