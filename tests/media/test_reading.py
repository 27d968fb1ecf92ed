"""What is asked of models of pictures and sound, and what the answers lead to, without any model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daemon.contract.formats.thresholds import EXACT
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import Verdict
from handlers.validate.checks import media
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.media import MediaSample, Unread
from handlers.validate.engines.media.made_up import picture, sound
from handlers.validate.engines.registry import EXACT as LIMITS
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.verdict import judge
from handlers.validate.workers.client import WorkerRefused
from handlers.validate.workers.protocol import Read, Reading

SEES = ValidatedTask("image-text-to-text")
ROWS = np.random.default_rng(0).normal(size=(6, 10)).astype(np.float32)


class Worker:
    """Answers with rows, or refuses."""

    def __init__(self, rows: np.ndarray | None, tokens: list[int] | None = None) -> None:
        self.rows, self.tokens = rows, tokens or [1, 2]

    def ask(self, request: Read) -> Reading:
        if self.rows is None:
            raise WorkerRefused("Pillow is missing", "install it")
        if len(self.rows):
            np.save(request.out, self.rows)
        return Reading(rows=len(self.rows), tokens=self.tokens)


def live(folder: Path) -> tuple[MediaSample, ...]:
    samples, unread = media.ask_live(Worker(ROWS), SEES, folder)  # type: ignore[arg-type]
    assert unread is None and len(samples) == media.COUNT
    return samples


def compared(rows: np.ndarray | None, folder: Path, tokens: list[int] | None = None) -> Any:
    samples, outputs = live(folder), folder / "outputs"
    outputs.mkdir()
    return media.compare(Worker(rows, tokens), SEES, samples, outputs, 1.0)  # type: ignore[arg-type]


def check(**given: Any) -> Any:
    text = {"agreement": 1.0, "kl": 0.0, "error_max": 0.0, "positions": 9, "logit_std": 1.0}
    examination = Examination(figures=CheckFigures(**text, **{key: value for key, value in given.items() if key == "media"}))
    examination.unread = given.get("unread")
    return judge("pytorch", LIMITS, examination, EXACT)


def test_what_answers_pictures_as_the_live_model_does_passes(tmp_path: Path) -> None:
    likeness, finding = compared(ROWS, tmp_path)
    assert finding is None and likeness.agreement == 1 and likeness.error_max == 0 and likeness.greedy_same == (2, 2, 2, 2)
    assert check(media=likeness).verdict is Verdict.PASSED


def test_what_answers_texts_alone_as_the_live_model_does_fails(tmp_path: Path) -> None:
    likeness, _ = compared(ROWS[::-1].copy(), tmp_path, [1, 3])
    verdict = check(media=likeness)
    assert likeness.greedy_same == (1, 1, 1, 1) and verdict.verdict is Verdict.FAILED
    assert any(reason.startswith("with pictures or sound, the largest logit error") for reason in verdict.reasons)


def test_pictures_that_are_prepared_otherwise_or_not_at_all_are_told(tmp_path: Path) -> None:
    _, finding = compared(ROWS[:4], tmp_path)
    assert finding.reason.startswith("with pictures its logits have the shape (4, 10)")
    (tmp_path / "more").mkdir()
    _, finding = compared(None, tmp_path / "more")
    assert finding.reason == "it can't read pictures: Pillow is missing" and finding.remedy == "install it"


def test_an_engine_that_reads_text_alone_is_asked_nothing_more(tmp_path: Path) -> None:
    assert compared(ROWS[:0], tmp_path) == (None, None)
    assert media.ask_live(Worker(ROWS), ValidatedTask(), tmp_path) == ((), None)  # type: ignore[arg-type]


def test_what_could_not_be_seen_is_unverified(tmp_path: Path) -> None:
    samples, unread = media.ask_live(Worker(None), SEES, tmp_path)  # type: ignore[arg-type]
    assert samples == () and unread == Unread("the live model could read no picture: Pillow is missing", "install it")
    verdict = check(unread=unread)
    assert verdict.verdict is Verdict.UNVERIFIED and verdict.remedy == "install it"


def test_pictures_and_sounds_are_the_same_each_time_and_unlike_each_other() -> None:
    for make in (picture, sound):
        assert all(np.array_equal(make(number), make(number)) for number in range(4))
        assert len({make(number).tobytes() for number in range(12)}) == 12
    assert picture(0).dtype == np.uint8 and picture(0).shape[2] == 3 and np.abs(sound(3)).max() < 1


@pytest.mark.parametrize(
    ("mark", "written", "prompt"),
    [
        ("<image>", "user: <image>Describe it.", "user: <image>Describe it."),
        ("<image>", "user: Describe it.", "<image>\nDescribe it."),  # a template for texts alone
        ("", "user: Describe it.", "Describe it."),  # two towers
    ],
)
def test_a_prompt_has_a_place_for_its_picture(mark: str, written: str, prompt: str) -> None:
    from handlers.validate.engines.media import processors

    processor = SimpleNamespace(image_token=mark, apply_chat_template=lambda *_, **__: written)
    assert processors._written(processor, "image", 0) == prompt
