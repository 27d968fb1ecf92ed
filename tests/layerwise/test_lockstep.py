"""Tasks that wait at doors: each goes its own way in its own order, one at a time, and equal ones share every opening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.layerwise.lockstep import Door, Lockstep, Task, task_here

PASS = st.sets(st.integers(0, 4), min_size=1).map(sorted)
"""The doors of one pass: parts are reached in their order, and some passes leave parts out."""
WORK = st.lists(PASS, max_size=4)


class Counting(Door):
    def __init__(self, number: int, opened: list[int]) -> None:
        super().__init__(number)
        self._opened = opened

    def serve(self, visits: Sequence[Task]) -> None:
        self._opened.append(self.number)
        for visit in visits:
            visit.enter((self.number, visit.payload))


class Case:
    """Doors, a lockstep, and works that note what they see."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.doors = [Counting(number, self.opened) for number in range(5)]
        self.lockstep = Lockstep(lambda task: None)
        self.inside = 0

    def work(self, name: int, passes: list[list[int]]) -> list[Any]:
        seen = []
        for number in [door for one in passes for door in one]:
            self.inside -= 1
            seen.append(task_here().wait_at(self.doors[number], name))
            self.inside += 1
            assert self.inside == 1, "only one task runs at any time"
        return seen

    def start(self, name: int, passes: list[list[int]], held: Door | None = None) -> Task:
        def whole() -> list[Any]:
            self.inside += 1
            try:
                return self.work(name, passes)
            finally:
                self.inside -= 1

        return self.lockstep.add(Task(whole, held=held))


@settings(deadline=None, max_examples=60)
@given(st.lists(WORK, min_size=1, max_size=6))
def test_every_task_comes_through_its_doors_in_order_with_its_own_answers(works: list[list[list[int]]]) -> None:
    case = Case()
    tasks = [case.start(name, passes) for name, passes in enumerate(works)]
    case.lockstep.finish(tasks)
    for name, (task, passes) in enumerate(zip(tasks, works, strict=True)):
        assert task.result() == [(number, name) for one in passes for number in one]
    assert not case.lockstep.serve(), "nobody waits any more"


@settings(deadline=None, max_examples=30)
@given(PASS, st.integers(1, 5), st.integers(1, 8))
def test_equal_passes_share_every_opening(doors: list[int], passes: int, count: int) -> None:
    case = Case()
    case.lockstep.finish([case.start(name, [doors] * passes) for name in range(count)])
    assert case.opened == doors * passes


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_tasks_of_different_lengths_take_as_many_openings_as_the_longest(lengths: list[int]) -> None:
    case = Case()
    tasks = [case.start(name, [[0, 1, 2]] * length) for name, length in enumerate(lengths)]
    sweeps = 1
    while case.lockstep.sweep():
        sweeps += 1
    assert all(task.done for task in tasks)
    assert case.opened == [0, 1, 2] * max(lengths) and sweeps == max(lengths)


def test_a_task_waits_at_the_door_at_which_it_is_held_until_it_is_let_go() -> None:
    case = Case()
    held, free = case.start(0, [[0, 1]], held=case.doors[1]), case.start(1, [[0, 1]])
    while case.lockstep.sweep():
        pass
    assert free.done and not held.done and case.opened == [0, 1]
    with pytest.raises(RuntimeError, match="held at a door"):
        case.lockstep.finish([held])
    held.held = None
    case.lockstep.finish([held])
    assert held.result() == [(0, 0), (1, 0)] and case.opened == [0, 1, 1]


def test_an_error_of_one_task_is_its_own_and_one_of_a_door_is_that_of_all_who_wait_there() -> None:
    case = Case()

    def broken() -> None:
        task_here().wait_at(case.doors[0], None)
        raise ValueError("mine")

    wrong, right = case.lockstep.add(Task(broken)), case.start(1, [[0, 1]])
    case.lockstep.finish([wrong, right])
    with pytest.raises(ValueError, match="mine"):
        wrong.result()
    assert right.result() == [(0, 1), (1, 1)]

    class Stuck(Door):
        def serve(self, visits: Sequence[Task]) -> None:
            raise OSError("the file is gone")

    stuck = Stuck(3)
    both = [case.lockstep.add(Task(lambda: task_here().wait_at(stuck, None))) for _ in range(2)]
    case.lockstep.finish(both)
    for task in both:
        with pytest.raises(OSError, match="the file is gone"):
            task.result()


def test_outside_of_a_task_there_is_none() -> None:
    with pytest.raises(RuntimeError, match="outside of its lockstep"):
        task_here()
