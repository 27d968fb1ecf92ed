"""Quiet hours: only what is urgent comes, by the clock on the wall also where it is set; the rest comes afterwards as one message."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from daemon.config.notify import NotifySettings, TargetSettings
from daemon.config.receivers import Receiver
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.journal.letters import letters
from daemon.journal.overview import overview
from daemon.journal.rows import Message, Notice
from daemon.publishing.telling import notifier as notify
from daemon.publishing.telling.content import payload
from daemon.publishing.telling.notifier import Notifier
from daemon.publishing.telling.outcome import Outcome
from daemon.publishing.telling.quiet import is_quiet
from tests.notify.conftest import enter_all

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


@pytest.mark.parametrize(
    ("hours", "moment", "quiet"),
    [
        ("22:00-07:00", "2026-01-10 21:59", False), ("22:00-07:00", "2026-01-10 22:00", True), ("22:00-07:00", "2026-01-11 00:00", True),
        ("22:00-07:00", "2026-01-11 06:59:59", True), ("22:00-07:00", "2026-01-11 07:00", False),
        ("12:00-13:30", "2026-01-10 13:29", True), ("12:00-13:30", "2026-01-10 13:30", False), ("12:00-13:30", "2026-01-10 00:00", False),
        ("", "2026-01-10 12:00", False),
    ],
)  # fmt: skip
def test_quiet_hours_are_those_of_the_wall_also_over_midnight(hours: str, moment: str, quiet: bool) -> None:
    assert is_quiet(hours, at(moment)) is quiet


def test_a_night_in_which_the_clock_is_set_is_quiet_from_its_beginning_to_its_end() -> None:
    for begin, hours in (("2026-03-28 22:00", 8), ("2026-10-24 22:00", 10)):
        start = at(begin)
        quiet = [is_quiet("22:00-07:00", start + 60 * minute) for minute in range(-60, 12 * 60)]
        assert quiet.count(True) == hours * 60, f"the night of {begin} has {hours} hours"
        assert quiet == [False] * 60 + [True] * hours * 60 + [False] * (12 - hours) * 60
    start = at("2026-03-29 01:30")  # an hour that this night does not have
    assert not any(is_quiet("02:00-03:00", start + 60 * minute) for minute in range(240))
    twice = at("2026-10-25 01:30")  # and one that this night has twice
    assert sum(is_quiet("02:00-03:00", twice + 60 * minute) for minute in range(240)) == 120


class Taken:
    """A message that has arrived."""

    wait_handle = None

    def poll(self) -> Outcome:
        return Outcome(None)

    def end(self) -> None:
        return


class Night:
    """A notifier with one quiet target and one that is not, on a clock that is set."""

    def __init__(self, journal: Journal, **keys: object) -> None:
        self.journal, self.clock, self.taken = journal, at("2026-01-10 21:00"), list[tuple[str, Message]]()
        quiet = TargetSettings(name="quiet", command=("x",), **{"quiet": "22:00-07:00", **keys})  # type: ignore[arg-type]
        self.settings = NotifySettings(targets=(quiet, TargetSettings(name="loud", command=("x",))))
        self.notifier = self.fresh()

    def fresh(self) -> Notifier:
        notifier = Notifier(self.settings, self.journal, begin=self.begin, clock=lambda: self.clock)
        notifier.know_targets()
        return notifier

    def begin(self, receiver: Receiver, message: Message) -> Taken:
        self.taken.append((receiver.name, message))
        return Taken()

    def tell(self, title: str, kind: str = "failed", **about: Any) -> None:
        self.journal.outbox.announce(title, Notice(kind, title, f"body of {title}", about))
        self.rounds()

    def until(self, moment: str) -> None:
        self.clock = at(moment)
        self.rounds()

    def rounds(self) -> None:
        for _ in range(6):
            self.notifier.tick()

    def of(self, name: str) -> list[str]:
        return [message.title for target, message in self.taken if target == name]


def test_what_is_held_comes_as_one_message_and_what_is_urgent_at_once(journal: Journal) -> None:
    night = Night(journal)
    night.tell("evening")
    night.until("2026-01-10 22:30")
    night.tell("one")
    night.tell("disk", "disk_low")
    night.tell("two", "succeeded", run="run", step=3, link="https://box/jobs/id")
    assert night.of("loud") == ["evening", "one", "disk", "two"]
    assert night.of("quiet") == ["evening", "disk"]
    night.notifier = night.fresh()  # what is held survives a restart
    night.until("2026-01-11 06:59")
    assert night.of("quiet") == ["evening", "disk"] and journal.outbox.pending() == 0, "what is held is no delivery that does not arrive"
    with reading(journal.database.path) as connection:
        assert overview(connection, 1).outbox == {"held": 2, "delivered": 2}
    night.until("2026-01-11 07:00")
    assert night.of("quiet")[2:] == ["2 messages of the quiet hours: 1 failed, 1 succeeded"]
    bundle = night.taken[-1][1]
    assert [line.partition(" ")[2] for line in bundle.body.splitlines()] == ["one", "two"]
    first, second = json.loads(payload(bundle))["data"]["messages"]
    assert (first["title"], first["job"], first["run"]) == ("one", None, None) and second["event"] == "succeeded"
    assert (second["run"], second["step"], second["link"]) == ("run", 3, "https://box/jobs/id")
    assert journal.outbox.pending() == 0
    assert {row[0] for row in journal.database.read("SELECT state FROM delivery")} == {"delivered"}
    night.tell("morning")
    assert night.of("quiet")[3:] == ["morning"]


def test_what_stands_behind_an_urgent_message_is_held_too(journal: Journal) -> None:
    night = Night(journal)
    night.until("2026-01-10 22:30")
    for title, kind in (("disk", "disk_low"), ("calm", "failed"), ("full", "disk_low")):
        journal.outbox.announce(title, Notice(kind, title, "body"))
    night.rounds()
    assert night.of("quiet") == ["disk", "full"]


def test_a_single_message_that_was_held_comes_as_it_is(journal: Journal) -> None:
    night = Night(journal)
    night.until("2026-01-10 22:30")
    night.tell("only")
    night.until("2026-01-11 07:00")
    assert night.of("quiet") == ["only"]


def test_what_is_held_comes_as_soon_as_a_target_has_no_quiet_hours_any_more(journal: Journal) -> None:
    night = Night(journal)
    night.until("2026-01-10 22:30")
    night.tell("only")
    loud = night.settings.targets[0].model_copy(update={"quiet": ""})
    night.notifier.adopt(NotifySettings(targets=(loud,)))
    night.rounds()
    assert night.of("quiet") == ["only"]


def test_what_is_urgent_is_the_targets_choice(journal: Journal) -> None:
    night = Night(journal, urgent=("failed",))
    night.until("2026-01-10 22:30")
    night.tell("failure")
    night.tell("disk", "disk_low")
    assert night.of("quiet") == ["failure"]


def test_a_thousand_messages_of_a_night_are_one(journal: Journal) -> None:
    night = Night(journal)
    night.notifier.adopt(NotifySettings(targets=night.settings.targets[:1]))
    night.until("2026-01-10 22:30")
    enter_all(journal, [f"title {number}" for number in range(1000)])
    night.rounds()
    assert night.taken == []
    night.until("2026-01-11 07:00")
    assert night.of("quiet") == ["1000 messages of the quiet hours: 1000 failed"]
    body = night.taken[-1][1].body.splitlines()
    assert (len(body), body[-1]) == (101, "and 900 more")
    assert journal.outbox.pending() == 0


def test_a_digest_that_never_arrives_is_dead_as_one_and_comes_again_as_one(
    journal: Journal, file: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(journal)
    night.until("2026-01-10 22:30")
    night.tell("one")
    night.tell("two")
    monkeypatch.setattr(notify, "REJECTIONS", 1)
    with monkeypatch.context() as patch:
        patch.setattr(Taken, "poll", lambda self: Outcome("error=400", rejected=True))
        night.until("2026-01-11 07:00")
    with reading(journal.database.path) as connection:
        (dead,) = letters(connection)
    assert (dead.state, dead.title, dead.error) == ("dead", "2 messages of the quiet hours: 2 failed", "error=400")
    states = "SELECT delivery.state FROM delivery JOIN target ON digest = target WHERE place LIKE '%quiet%'"
    assert [row[0] for row in journal.database.read(states)] == ["abandoned"] * 3
    night.taken.clear()
    assert journal.letters.resend(None) == [dead.id]
    night.rounds()
    assert night.of("quiet") == ["2 messages of the quiet hours: 2 failed"]
    assert [row[0] for row in journal.database.read(states)] == ["delivered"] * 3
