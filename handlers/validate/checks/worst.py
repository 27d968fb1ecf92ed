"""Where an artifact is farthest from the live model: the worst prompt, its worst position, and what both choose there, as text.

Called by `examination` once all prompts were compared. For people: no verdict depends on it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import WorstSample
from handlers.validate.arithmetic.comparison import Rows
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import Decode

MOST_BEFORE = 48
"""Tokens before the position that are shown."""


def find(worker: EngineWorker, reference: Reference, rows: list[Rows], outputs: Path) -> WorstSample | None:
    """Give the worst position of the prompt with the largest divergence; None for heads without one, and where nothing is text.

    `outputs`: the folder with the artifact's rows, N.npy for each prompt.
    """
    if not reference.readable or not all(len(text.divergences) for text in rows):
        return None
    number = max(range(len(rows)), key=lambda place: float(rows[place].divergences.mean()))
    sample, divergences = reference.samples[number], rows[number].divergences
    row = int(divergences.argmax())
    live, artifact = (np.load(path, mmap_mode="r")[row] for path in (sample.logits, outputs / f"{number}.npy"))
    figures = WorstSample(
        number=number + 1, kl=float(divergences.mean()), position=sample.keep[row], position_kl=float(divergences[row]), prompt=sample.text
    )
    try:
        return figures.plus(
            before=_before(worker, reference, sample, sample.keep[row]),
            live=_choice(worker, reference, sample, live),
            artifact=_choice(worker, reference, sample, artifact),
        )
    except WorkerRefused:
        return figures  # a tokenizer that can't be used is a reason of its own


def _before(worker: EngineWorker, reference: Reference, sample: Sample, place: int) -> str | None:
    """Give the text up to the position: of a language model's row, up to the token after which it chooses."""
    subject = reference.subject
    if subject.one_answer:
        return None
    ids = sample.tokens[:place] if subject.kind == "seq2seq" else [*sample.ids, *sample.tokens][: place + (subject.kind == "causal")]
    return worker.ask(Decode(ids=ids[-MOST_BEFORE:])).text if ids else ""


def _choice(worker: EngineWorker, reference: Reference, sample: Sample, row: np.ndarray) -> str:
    subject = reference.subject
    if subject.head == "labels":
        chosen = [number for number, value in enumerate(row) if value > 0]
        return ", ".join(_label(subject.labels, number) for number in chosen) or "(no label)"
    token = int(row.argmax())
    if subject.labels is not None:
        return _label(subject.labels, token)
    if subject.task == "question-answering":
        return worker.ask(Decode(ids=sample.ids[token : token + 1])).text
    return worker.ask(Decode(ids=[token])).text


def _label(names: tuple[str, ...] | None, number: int) -> str:
    return names[number] if names and number < len(names) else str(number)
