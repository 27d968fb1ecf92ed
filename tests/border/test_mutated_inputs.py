"""Whatever a trainer's file holds, it is taken, refused in one sentence, or incomplete: no other error passes the border."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.border.mutations import mutated_inputs


def test_some_hundred_mutated_inputs_meet_no_error_that_nobody_foresaw(sources: dict[str, Path]) -> None:
    counts = mutated_inputs(11, 600, sources["base"].parent)
    assert counts.findings == []
    assert min(counts.taken, counts.refused, counts.incomplete) > 60, counts.figures()
    assert counts.inputs == counts.taken + counts.refused + counts.incomplete


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_thousand_mutated_inputs_meet_no_error_that_nobody_foresaw(seed: int, sources: dict[str, Path]) -> None:
    counts = mutated_inputs(seed, 50_000, sources["base"].parent)
    print(counts.figures())
    assert counts.findings == []
