"""Checks whether training saw the segments that the model is run with. Called by `reference.py` while the live worker holds the model.

PEFT's wrapper of a model for question answering (task type QUESTION_ANS) takes `token_type_ids` and hands none on, so that an adapter
trained through it has only known inputs of one segment. The live model and the artifacts get the tokenizer's segments, as programs
without PEFT feed them. Whether the installed PEFT does so is found out by running both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from handlers.validate.arithmetic.comparison import in_deviations
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import CompareWrapper

if TYPE_CHECKING:
    from handlers.validate.checks.live.samples import Sample

NOISE = 1e-4
"""Largest |Δ| in standard deviations of the outputs that is rounding."""


def lost(live: EngineWorker, samples: Iterable[Sample], unit: float) -> list[str]:
    """Give a warning where PEFT's wrapper answers otherwise than the model inside of it does with segments, or could not be asked."""
    pairs = [(sample, sample.types) for sample in samples if sample.types and len(set(sample.types)) > 1]
    try:
        errors = [live.ask(CompareWrapper(ids=sample.ids, types=types)).max_absolute for sample, types in pairs]
    except WorkerRefused as failure:
        return [f"It is not known whether PEFT's wrapper passes segments to the model: {failure.cause}."]
    deviations = in_deviations(max((error for error in errors if error is not None), default=0.0), unit)
    if deviations <= NOISE:
        return []
    return [
        "PEFT's wrapper for question answering does not pass segments (token_type_ids) to the model, so an adapter that was"
        " trained with it has never seen a second segment. The live model and the artifacts were run with two segments, as"
        f" the tokenizer gives them. This changes their logits by up to {deviations:.3g} standard deviations from those of the"
        " wrapper. To get the wrapper's outputs, use token_type_ids of 0."
    ]
