"""From prompts to what each task reads: pieces of texts, pairs for question answering, hidden tokens for masked models. Pure.

Called by `reference.py`. The same prompts serve all tasks: it only matters that artifact and live model give the same outputs, not that
these are good answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from handlers.validate.engines.task_profile import ValidatedTask

_EVERY = 6
"""Every so many tokens one is hidden."""


def pieces(subject: ValidatedTask, texts: Sequence[str]) -> list[str]:
    """Give the texts to run. Where a text gets one answer its halves are texts too, so that one near tie does not decide a verdict."""
    if not subject.one_answer:
        return list(texts)
    parts = []
    for text in texts:
        words = text.split(" ")
        middle = len(words) // 2
        parts += [text, " ".join(words[:middle]), " ".join(words[middle:])]
    return list(dict.fromkeys(text for text in parts if text.strip()))


def question(text: str) -> str:
    """Give what is asked about a text: its first words."""
    words = text.split()
    return " ".join(words[: max(1, len(words) // 3)])


def hidden(ids: Sequence[int], special: Collection[int], mask: int | None) -> tuple[list[int], list[int]]:
    """Give the ids with a few tokens hidden behind the mask token, and their places; without a mask token nothing is hidden."""
    real = [place for place, token in enumerate(ids) if token not in special] or list(range(len(ids)))
    places = real[len(real) // 2 % _EVERY :: _EVERY] or real[:1]
    if mask is None:
        return list(ids), places
    return [mask if place in places else token for place, token in enumerate(ids)], places


def rows_that_count(subject: ValidatedTask, ids: Sequence[int], targets: Sequence[int], special: Collection[int]) -> list[int]:
    """Say which rows of a model's outputs are compared.

    All tokens of prompt and continuation; all target tokens; the one row of a classifier or of a text's vector; start and end of an answer;
    all tokens that are not special; of a bare encoder all tokens.
    """
    if subject.kind == "causal":
        return list(range(len(ids) + len(targets)))
    if subject.kind == "seq2seq":
        return list(range(len(targets)))
    if subject.one_answer:
        return [0, 1] if subject.task == "question-answering" else [0]
    if subject.task == "token-classification":
        return [place for place, token in enumerate(ids) if token not in special] or list(range(len(ids)))
    return list(range(len(ids)))
