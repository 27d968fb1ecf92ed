"""Artifacts beside their twins: what the comparison says, and by which words it tells what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from handlers.validate.twins.compare import compare
from handlers.validate.twins.judging import judged
from handlers.validate.twins.messages import Answer, Order, Text

STRUCTURE = "its graph is not the model that its own weights give"
STORED = "not what rounding gives|none of the merged model's|too coarse"


def texts(length: int, long: int) -> list[Text]:
    """A short and a long text, and a short one at the end of the `length` positions of a model of 320 tokens."""
    drawn = np.random.default_rng(0)
    first, second = ([int(token) for token in drawn.integers(2, 320, count)] for count in (12, long))
    return [Text(ids=first), Text(ids=second), Text(ids=first, start=length - len(first))]


def answered(
    form: str, engine: str, folder: Path, merged: Path, given: list[Text], task: str = "text-generation", arithmetic: str = "float"
) -> Answer:
    """What the comparison of a folder with its twin finds; what the engine needs can be imported."""
    return compare(Order(
        form=form, engine=engine, folder=str(folder), merged=str(merged), task=task, sentence=False, threads=1, texts=given,
        arithmetic=arithmetic,
    ))  # fmt: skip


def reasons(answer: Answer, variant: str) -> str:
    """What a check says of it."""
    compared = judged(answer, variant)
    return " | ".join((*(finding.reason for finding in compared.findings), *compared.notes))
