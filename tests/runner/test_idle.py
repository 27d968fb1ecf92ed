"""What the runner asks of the journal when there is nothing to do, and that it misses nothing by asking less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from daemon.journal.journal import Journal
from tests.runner.desk import Desk


@pytest.fixture
def idle(make_desk: Callable[..., Desk]) -> Desk:
    """A desk whose only job has ended."""
    desk = make_desk()
    desk.add("run", 1)
    for _ in range(40):
        desk.runner.tick_if_needed()
    assert desk.state("run-1") == "succeeded"
    return desk


@pytest.fixture
def queries(idle: Desk, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    database: Any = idle.journal.database
    read = database.read
    monkeypatch.setattr(database, "read", lambda statement, *values: [asked.append(statement), read(statement, *values)][1])
    return asked


def test_where_nothing_is_left_to_do_the_journal_is_not_queried(idle: Desk, queries: list[str]) -> None:
    for _ in range(100):
        idle.runner.tick_if_needed()
    assert queries == []


def test_what_another_program_puts_into_the_journal_is_found_by_the_next_look(idle: Desk, queries: list[str]) -> None:
    other = Journal(idle.journal.database.path)
    assert other.jobs.retry("run-1")
    other.close()
    idle.runner.tick_if_needed()
    assert queries and idle.state("run-1") == "running"


def test_what_the_daemon_itself_enters_is_found_by_the_next_look(idle: Desk, queries: list[str]) -> None:
    idle.add("run", 2)
    idle.runner.tick_if_needed()
    assert idle.state("run-2") == "running"


def test_a_job_that_waits_is_looked_at_in_every_round_since_time_alone_may_let_it_go_on(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.add("run", 1)
    assert desk.journal.controls.pause_all(True)
    for _ in range(5):
        desk.runner.tick_if_needed()
    assert desk.started == []
    assert desk.journal.controls.pause_all(False)
    desk.runner.tick_if_needed()
    assert desk.started != []


def test_the_next_job_begins_when_one_has_ended_and_not_after_a_pause(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    desk.add("run", 1)
    desk.add("run", 2)
    rounds = 0
    while desk.state("run-1") != "succeeded":
        desk.runner._wake.clear()
        desk.runner.tick()
        rounds += 1
        assert rounds < 60
    assert desk.runner._wake.is_set(), "the runner does not sleep"
