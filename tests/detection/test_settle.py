"""The settler on a virtual clock: arbitrary hints and changes, and a watcher that looks exactly when it is told to."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from daemon.watching.undecided import PEEK_SECONDS, Settler

SETTLE = 3.0
GRAIN = 1e-6
moments = st.lists(st.integers(0, 20_000).map(lambda thousandth: thousandth / 1000), min_size=1, max_size=60).map(sorted)


def play(changes: list[float], hints: list[float], settle: float = SETTLE) -> list[tuple[float, bool]]:
    """Every look with its answer. A change gives a hint as an event would; further hints come without any change."""
    settler, looks = Settler(settle), []
    queue = sorted([*changes, *hints])
    while queue or settler.next_due() is not None:
        due = settler.next_due()
        if queue and (due is None or queue[0] <= due):
            settler.hint("checkpoint-4", queue.pop(0))
            continue
        assert due is not None
        assert len(looks) < 5000, f"it is looked at over and over at {due}"
        for path in settler.due(due):
            seen = sum(1 for change in changes if change <= due)
            looks.append((due, settler.looked(path, seen, due) is not None))
    return looks


@given(changes=moments, hints=moments)
def test_quiet_is_never_said_within_the_settle_time_after_a_change(changes: list[float], hints: list[float]) -> None:  # R1.1
    for when, answer in play(changes, hints):
        last = max((change for change in changes if change <= when), default=-math.inf)
        assert not answer or when - last >= SETTLE - GRAIN


@given(changes=moments, hints=moments)
def test_quiet_comes_no_later_than_a_settle_time_and_a_peek_after_the_last_change(changes: list[float], hints: list[float]) -> None:  # R1.1
    quiet = [when for when, answer in play(changes, hints) if answer and when >= changes[-1]]
    assert quiet
    assert quiet[0] <= changes[-1] + SETTLE + PEEK_SECONDS + GRAIN


@given(changes=moments, hints=moments)
def test_a_chatty_directory_is_not_looked_at_more_often_than_the_peek_time(changes: list[float], hints: list[float]) -> None:
    looks = [when for when, _ in play(changes, hints)]
    assert all(after - before >= PEEK_SECONDS - GRAIN for before, after in pairwise(looks))


def test_a_quiet_directory_costs_no_look_until_the_next_hint() -> None:
    looks = play([0.0], [])
    assert [answer for _, answer in looks] == [False, True]


def test_directories_settle_independently_and_one_that_is_forgotten_starts_afresh() -> None:
    settler = Settler(SETTLE)
    settler.hint("a", 0.0)
    settler.looked("a", 1, 0.0)
    settler.hint("b", 2.9)
    settler.looked("b", 1, 2.9)
    assert settler.due(3.0) == ["a"]
    settler.forget("a")
    assert settler.due(3.0) == []
    assert settler.looked("a", 1, 3.0) is None
    assert settler.looked("b", 1, 5.9) == 2.9 + SETTLE
