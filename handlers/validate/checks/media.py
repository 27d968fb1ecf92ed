"""Language models that read pictures or sound: the live model's answers to made-up ones, and an artifact's beside them.

Texts alone do not run their towers. Each model prepares the same pictures by the processor in its own folder, as its users do, runs the
prompt that its chat template makes of it, and goes on by its own `generate`. A runtime that has no processor gets the live model's prompt
and picture, and prepares the picture by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import Likeness
from daemon.contract.models.media import NOUNS
from handlers.validate.arithmetic.comparison import Comparison
from handlers.validate.engines.arrays import same_start
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.findings import Finding
from handlers.validate.length.text import Stored
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import PicturePrompt, Read

COUNT, TOKENS = 4, 8
"""Pictures or sounds, and most tokens that are written after each."""


@dataclass(frozen=True)
class MediaSample:
    """What the live model made of a picture or sound."""

    number: int
    logits: Stored
    """.npy file (rows, V) float32."""
    tokens: list[int]
    prompt: PicturePrompt | None = None


@dataclass(frozen=True)
class Unread:
    """Why the live model could read none."""

    cause: str
    """As a clause."""
    remedy: str


def ask_live(live: EngineWorker, subject: ValidatedTask, folder: Path) -> tuple[tuple[MediaSample, ...], Unread | None]:
    """Give the live model's answers, whose logits `folder` receives; nothing for models of text alone. Raises WorkerFailed."""
    if subject.media is None or not subject.reads_text:
        return (), None
    what = "picture" if subject.media == "image" else "sound"
    samples = []
    for number in range(COUNT):
        path = folder / f"media-{number}.npy"
        try:
            answer = live.ask(Read(number=number, tokens=TOKENS, out=str(path)))
        except WorkerRefused as error:
            if error.transient:
                raise
            return (), Unread(f"the live model could read no {what}: {error.cause}", error.remedy)
        if not answer.rows:
            return (), Unread(f"models that are run layer by layer read no {what}s here", "export on a machine with more memory")
        samples.append(MediaSample(number, path, answer.tokens, answer.prompt))
    return tuple(samples), None


def compare(
    worker: EngineWorker, subject: ValidatedTask, samples: tuple[MediaSample, ...], outputs: Path, unit: float
) -> tuple[Likeness | None, Finding | None]:
    """Give how near an artifact is to the live model on these, or why it can't read them; neither for an engine that reads text alone.

    `outputs`: a folder for its logits; `unit`: standard deviation of the live model's logits. Raises WorkerFailed where it is lost.
    """
    beside, same, what = Comparison(subject.head), list[int](), NOUNS[subject.media or "image"]
    for sample in samples:
        path = outputs / f"media-{sample.number}.npy"
        try:
            answer = worker.ask(Read(number=sample.number, tokens=len(sample.tokens), out=str(path), prompt=sample.prompt))
            if not answer.rows:
                return None, None
            wanted = np.load(sample.logits)
            beside.add(wanted[answer.kept] if answer.kept else wanted, np.load(path))
        except WorkerRefused as error:
            return None, Finding(what, f"it can't read {what}: {error.cause}", error.remedy)
        except ValueError as error:
            remedy = "export again: its processor prepares them otherwise than the checkpoint's"
            return None, Finding(what, f"with {what} {error}", remedy)
        same.append(same_start(answer.tokens, sample.tokens))
    if not samples:
        return None, None
    longest = float(np.median([len(sample.tokens) for sample in samples]))
    likeness = beside.figures(unit).plus(greedy_same=tuple(same), greedy_same_median=float(np.median(same)), greedy_tokens_median=longest)
    return likeness, None
