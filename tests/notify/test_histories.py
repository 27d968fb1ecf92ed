"""Random histories of services, reloads and kills on a virtual clock: what holds for every message and every service, whatever happens.

The journal and the notifier are real; a service is played, since no real one hangs, lies and comes back on demand.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from daemon.config.notify import NotifySettings
from daemon.config.receivers import Receiver
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.journal import Journal
from daemon.journal.rows import Message, Notice
from daemon.publishing.telling import targets
from daemon.publishing.telling.notifier import Notifier
from daemon.publishing.telling.outcome import LIMIT_SECONDS, Outcome

SERVICES = 4
NAMES = [f"json://host-{number}/S3CRET-{number}" for number in range(SERVICES)]
MOODS = ("up", "down", "slow", "hangs", "takes it and answers 500", "rejects", "unknown")
START = 1_800_000_000.0
Told = tuple[str, str]
"""(URL, title)."""


@dataclass
class Played:
    """A message on its way to a played service."""

    world: World
    url: str
    title: str
    began: float
    looks: int = 0
    outcome: Outcome | None = None

    wait_handle = None

    def poll(self) -> Outcome | None:
        """How it has ended up to now."""
        return self.outcome

    def go_on(self) -> None:
        """By the mood that the service has now, whether anybody asks or not."""
        self.looks += 1
        if self.outcome is None:
            self.outcome = self._answer(self.world.mood[self.url])

    def _answer(self, mood: str) -> Outcome | None:
        if mood == "up" or (mood == "slow" and self.looks > 3):
            self.world.take(self.url, self.title)
            return Outcome(None)
        if mood == "takes it and answers 500":
            self.world.take(self.url, self.title)
            self.world.excused[self.url, self.title] += 1
            return Outcome("error=500")
        if mood in ("slow", "hangs") and self.world.clock - self.began < LIMIT_SECONDS:
            return None
        return Outcome(mood, unknown=mood == "unknown", rejected=mood == "rejects")

    def end(self) -> None:
        """Nothing more is heard of it."""
        self.outcome = self.outcome or Outcome("ended")


@dataclass
class World:
    """A daemon's notifier, its journal, the services and what they took."""

    journal: Journal
    clock: float = START
    mood: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, "up"))
    named: tuple[str, ...] = tuple(NAMES)
    taken: dict[str, list[str]] = field(default_factory=lambda: {url: [] for url in NAMES})
    meant: set[Told] = field(default_factory=set)
    """Who was named when a message was entered, and has been ever since."""
    never: set[Told] = field(default_factory=set)
    excused: Counter[Told] = field(default_factory=Counter)
    """Copies that may come again: the service said it failed, or the daemon was killed before it could record that it did not."""
    sent: list[Played] = field(default_factory=list)
    full: bool = False
    titles: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        write: Any = self.journal.database.write

        def refusing(name: str, function: Any) -> Any:
            if self.full:
                raise Retryable(FaultCode.JOURNAL_UNAVAILABLE, f"write ({name})", "the disk is full", "free space")
            return write(name, function)

        self.journal.database.write = refusing  # type: ignore[method-assign]
        self.notifier = self.fresh()

    def fresh(self) -> Notifier:
        notifier = Notifier(NotifySettings(urls=self.named), self.journal, begin=self.begin, clock=lambda: self.clock)
        if not self.full:
            notifier.know_targets()
        return notifier

    def begin(self, receiver: Receiver, message: Message) -> Played:
        self.sent.append(Played(self, receiver.url.get_secret_value(), message.title, self.clock))
        return self.sent[-1]

    def take(self, url: str, title: str) -> None:
        assert (url, title) not in self.never, "a message went to a service that was not named when it was entered, or is named no more"
        self.taken[url].append(title)
        assert self.taken[url].count(title) <= 1 + self.excused[url, title], "a service was told again without need"
        firsts = list(dict.fromkeys(self.taken[url]))
        assert firsts == sorted(firsts), "messages came in another order than they were entered in"

    def enter(self) -> None:
        if self.full:
            return
        title = f"{next(self.titles):05}"
        self.journal.outbox.announce(title, Notice("failed", title, "body"))
        self.meant |= {(url, title) for url in self.named}
        self.never |= {(url, title) for url in NAMES if url not in self.named}

    def reload(self, kept: frozenset[int]) -> None:
        if self.full:
            return
        self.named = tuple(NAMES[number] for number in sorted(kept))
        self.notifier.adopt(NotifySettings(urls=self.named))
        self.tick()
        gone = {told for told in self.meant if told[0] not in self.named}
        self.meant -= gone
        self.never |= {(url, title) for url, title in gone}

    def kill(self, arrived: bool) -> None:
        """The daemon is killed, and started again; what is on its way may arrive all the same."""
        for flight in self.notifier._flights.values():
            played: Any = flight.attempt
            if played.outcome is None:
                if arrived:
                    self.take(played.url, played.title)
                    self.excused[played.url, played.title] += 1
                played.end()
            elif played.outcome.error is None:
                self.excused[played.url, played.title] += 1
        self.notifier = self.fresh()

    def tick(self) -> None:
        for played in self.sent:
            played.go_on()
        try:
            self.notifier.tick()
        except Retryable:
            assert self.full

    def run(self, seconds: float) -> None:
        """So much time passes, in rounds."""
        for _ in range(6):
            self.tick()
            self.clock += seconds / 6
        self.tick()
        self.tick()

    def states(self) -> dict[Told, tuple[str, int]]:
        places = {self.notifier._targets[digest][1].url.get_secret_value(): digest for digest in self.notifier._targets}
        rows = self.journal.database.read("SELECT title, target, delivery.state, attempts FROM delivery JOIN outbox ON id = message")
        by = {digest: url for url, digest in places.items()}
        return {(by[row[1]], row[0]): (row[2], row[3]) for row in rows if row[1] in by}

    def check_nobody_waits_for_others(self) -> None:
        """Whoever works, and has not failed since, has nothing to wait for."""
        failing = {row[0] for row in self.journal.database.read("SELECT digest FROM target WHERE failures > 0")}
        healthy = {
            receiver.url.get_secret_value()
            for digest, (_, receiver) in self.notifier._targets.items()
            if digest not in failing and self.mood[receiver.url.get_secret_value()] == "up"
        }
        late = [told for told, (state, _) in self.states().items() if state == "pending" and told[0] in healthy]
        assert len(late) <= 0 or self.full, f"kept waiting by others: {late}"


OPERATIONS = st.one_of(
    st.just(("enter", None)),
    st.just(("enter", None)),
    st.tuples(st.just("mood"), st.tuples(st.integers(0, SERVICES - 1), st.sampled_from(MOODS))),
    st.tuples(st.just("run"), st.sampled_from([1.0, 10.0, 60.0, 600.0, 7200.0])),
    st.tuples(st.just("reload"), st.frozensets(st.integers(0, SERVICES - 1), min_size=1)),
    st.tuples(st.just("kill"), st.booleans()),
    st.tuples(st.just("tick"), st.none()),
    st.tuples(st.just("full"), st.booleans()),
)


def play(operations: list[tuple[str, Any]], folder: Path) -> None:
    file = folder / "journal.sqlite3"
    journal = Journal(file)
    try:
        with capture_logs() as logs:
            world = World(journal)
            for name, value in operations:
                match name:
                    case "enter":
                        world.enter()
                    case "mood":
                        world.mood[NAMES[value[0]]] = value[1]
                    case "run":
                        world.run(value)
                        if not world.full:
                            for _ in range(2 * len(world.sent) + 4):
                                world.tick()
                            world.check_nobody_waits_for_others()
                    case "reload":
                        world.reload(value)
                    case "kill":
                        world.kill(value)
                    case "tick":
                        world.tick()
                    case "full":
                        world.full = value
            world.full = False
            world.notifier = world.notifier if world.notifier._targets else world.fresh()
            world.mood = dict.fromkeys(NAMES, "up")
            world.notifier.adopt(NotifySettings(urls=world.named))  # nobody is known as no service any more
            for _ in range(40 + 3 * len(world.meant)):
                world.tick()
                world.clock += 400.0
        states = world.states()
        for told in world.meant:
            state, _ = states[told]
            if state == "delivered":
                assert told[1] in world.taken[told[0]]
            else:
                assert state == "abandoned", f"{told} still waits"
        given_up = {told for told in world.meant if states[told][0] == "abandoned"}
        said = [
            entry for entry in logs if entry["event"] in ("notifications are given up", "nobody can be told there; the other services are")
        ]
        assert bool(said) or not given_up
        spoken = json.dumps(logs, default=str)
    finally:
        journal.close()
    assert "S3CRET" not in spoken and b"S3CRET" not in file.read_bytes()


FULL_WHILE_SENDING = [("enter", None), ("tick", None), ("full", True), ("tick", None), ("tick", None), ("full", False), ("run", 1.0)]
SLOW = [("mood", (0, "slow")), ("enter", None), *[("tick", None)] * 6]


@example(FULL_WHILE_SENDING)
@example(SLOW)
@given(st.lists(OPERATIONS, min_size=5, max_size=60))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_services_do_each_message_reaches_each_of_them_once_and_in_order(operations: list[tuple[str, Any]]) -> None:
    before, targets.ROUNDS = targets.ROUNDS, 1
    try:
        with tempfile.TemporaryDirectory() as folder:
            play(operations, Path(folder))
    finally:
        targets.ROUNDS = before
