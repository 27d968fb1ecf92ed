"""A live model that says the same whatever it is asked, or is saturated, is not called passed without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.contract.jobs.options import ValidateOptions
from handlers.validate.arithmetic.degeneration import Degeneration
from handlers.validate.checks.live.reference import LiveModel, measure
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from tests import models
from tests.merge import helpers
from tests.validate.bench import Direct

HEADS: Any = st.sampled_from(["choice", "labels", "value", "vector"])


def said(head: Any, *prompts: np.ndarray) -> list[str]:
    degeneration = Degeneration(head)
    for rows in prompts:
        degeneration.add(rows)
    return degeneration.warnings()


@settings(max_examples=100, deadline=None)
@given(head=HEADS, seed=st.integers(0, 2**32 - 1), size=st.floats(1e-20, 1e30), prompts=st.integers(1, 5), rows=st.integers(1, 4))
def test_outputs_that_vary_are_said_nothing_of_and_their_first_row_alone_is(
    head: Any, seed: int, size: float, prompts: int, rows: int
) -> None:
    random = np.random.default_rng(seed)
    varied = [(random.normal(size=(rows, 16)) * min(size, 10.0)).astype(np.float32) for _ in range(prompts)]
    assert said(head, *varied) == []
    first = (varied[0][0] * size).astype(np.float32)
    rounded = [np.tile(first, (rows, 1)) * np.float32(1 + 1e-7 * number) for number in range(prompts)]
    assert len(said(head, *rounded)) == (1 if prompts * rows > 1 else 0)


def test_choices_without_any_doubt_are_said_and_certain_ones_are_not() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(12, 40)).astype(np.float32)
    rows[np.arange(12), random.integers(0, 40, 12)] += 90
    assert said("choice", rows[:6], rows[6:]) == []
    (warning,) = said("choice", rows[:6] * 1000, rows[6:] * 1000)
    assert "one choice all of the probability at all 12 positions of 2 prompts" in warning
    doubtful = rows * 1000
    doubtful[3] = rows[3]
    assert said("choice", doubtful) == []
    assert said("vector", rows * 1000) == []


@pytest.mark.parametrize(("weight", "words"), [(1.0, None), (1e6, "gives the same output at all")])
def test_an_adapter_with_an_absurd_factor_makes_the_reference_say_so(weight: float, words: str | None, tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base", dtype="float32")
    adapter = helpers.make_adapter(base, tmp_path / "adapter", seed=3)
    live = LiveModel(cast(EngineWorker, Direct("live", EngineSpec(engine="live", folder=str(adapter), base=str(base), weight=weight))))
    options = ValidateOptions(samples=2, new_tokens=4, speed_tokens=0)
    found = measure(live, models.TEXTS[:2], options, tmp_path, lambda fraction, message: None).warnings
    if words is None:
        assert found == []
    else:
        assert len(found) == 1 and words in found[0]


def test_rows_of_different_widths_are_compared_with_their_like() -> None:
    rng = np.random.default_rng(0)
    answers = Degeneration("choice")
    for width in (43, 51, 43):
        answers.add(rng.normal(size=(2, width)).astype(np.float32))
    assert answers.warnings() == []
    alone = Degeneration("choice")
    for width in (5, 7):
        alone.add(np.zeros((1, width), np.float32) + np.arange(width, dtype=np.float32))
    assert alone.warnings() == [], "one row of each width can't be compared with another"
