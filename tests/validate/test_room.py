"""What an artifact with less room than the live model is compared on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.figures import LiveFigures
from handlers.validate.checks import room
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.task_profile import LANGUAGE_MODEL, ValidatedTask
from handlers.validate.workers.client import WorkerFailed


def reference(*lengths: tuple[int, int], subject: ValidatedTask = LANGUAGE_MODEL, **others: Any) -> Reference:
    samples = [Sample("text", [5] * ids, [5] * ids, [6] * tokens, None, [0], Path("none"), **others) for ids, tokens in lengths]
    return Reference(samples, 1.0, [5], 4, True, LiveFigures(), None, subject=subject)


def test_prompts_that_do_not_fit_are_left_out_and_keep_their_numbers() -> None:
    whole = reference((10, 4), (30, 4), (12, 4))
    kept = room.fitting(whole, 16)
    assert [kept.number(place) for place in range(len(kept.samples))] == [0, 2]
    assert room.warn("litert", whole, kept, 16) == ["1 of 3 prompts were not compared: litert has room for 16 tokens, and they need more."]


def test_where_all_fit_nothing_changes() -> None:
    whole = reference((10, 4), (12, 4))
    assert room.fitting(whole, 16) is whole and room.fitting(whole, None) is whole
    assert room.warn("litert", whole, whole, 16) == [] and whole.number(1) == 1


def test_where_none_fits_the_artifact_can_not_be_checked() -> None:
    with pytest.raises(WorkerFailed, match="it has room for 8 tokens, and the shortest prompt needs 14 with its continuation"):
        room.fitting(reference((10, 4), (30, 4)), 8)


def test_an_encoder_decoder_has_room_for_source_and_answer_apart() -> None:
    subject = ValidatedTask("text2text-generation")
    assert len(room.fitting(reference((10, 4), (4, 10), (4, 9), subject=subject), 10).samples) == 2


def test_a_question_whose_answer_does_not_fit_is_not_asked() -> None:
    kept = room.fitting(reference((4, 4), prompt=[5] * 6, steps=8, answer="yes", asked="what?"), 12)
    assert kept.samples[0].prompt is None and kept.samples[0].answer is None
