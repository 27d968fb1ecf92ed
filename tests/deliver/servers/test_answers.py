"""The share of the fine-tuning in a server's answers, by real log-probabilities."""

from __future__ import annotations

import math

import pytest

from handlers.deliver.servers.answers import Answer, Position, judge, positions_of
from tests.deliver.servers.conftest import Steps


def answers(positions: tuple[Position, ...], factor: float) -> list[Answer]:
    """What a model would list with so much of the fine-tuning, normalized over the known tokens."""
    said: list[Answer] = []
    for position in positions:
        raw = {token: base + factor * (position.live[token] - base) for token, base in position.base.items()}
        most = math.log(sum(math.exp(value) for value in raw.values()))
        mass = math.log(sum(math.exp(value) for value in (position.base if factor == 0 else position.live).values()))
        listed = {token: value - most + mass for token, value in raw.items()}
        said.append(dict(sorted(listed.items(), key=lambda row: -row[1])[:20]))
    return said


def test_an_export_holds_few_positions_of_the_shown_prompts_with_both_models(steps: Steps) -> None:
    positions = positions_of(steps.report(4))
    assert 4 <= len(positions) <= 16
    assert all(20 <= len(position.live) <= 40 and position.base.keys() == position.live.keys() for position in positions)


@pytest.mark.parametrize(("factor", "low", "high"), [(1.0, 0.999, 1.001), (0.0, -0.001, 0.001), (0.5, 0.3, 0.7), (2.0, 1.5, 2.5)])
def test_the_share_tells_how_much_of_the_fine_tuning_is_there(steps: Steps, factor: float, low: float, high: float) -> None:
    positions = positions_of(steps.report(4))
    judged = judge(positions, answers(positions, factor), 0.9)
    assert judged.share is not None and low <= judged.share <= high
    assert (judged.fault == "") == (factor == 1.0)


def test_the_order_of_magnitude_of_a_servers_rounding_does_not_matter(steps: Steps) -> None:
    positions = positions_of(steps.report(4))
    rounded = [{token: value + 0.02 * (-1) ** token for token, value in answer.items()} for answer in answers(positions, 1.0)]
    judged = judge(positions, rounded, 0.9)
    assert not judged.fault and judged.share is not None and abs(judged.share - 1) < 0.05


def test_an_export_without_a_base_is_judged_by_the_first_tokens() -> None:
    positions = (Position((1,), {5: -0.1, 6: -3.0}, {}), Position((2,), {7: -0.1, 6: -3.0}, {}))
    assert not judge(positions, [{5: -0.2}, {7: -0.2}], 0.9).fault
    assert judge(positions, [{6: -0.2}, {8: -0.2}], 0.9).fault
