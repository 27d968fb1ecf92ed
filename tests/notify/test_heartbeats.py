"""Heartbeats come while the daemon is well, whatever other targets do, and their silence is the alarm."""

from __future__ import annotations

import time
from collections.abc import Callable

from structlog.testing import capture_logs

from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.journal.overview import overview
from daemon.journal.rows import Notice
from daemon.publishing.telling.notifier import Notifier
from tests.notify.conftest import WAIT, Notify, Targets, deliver
from tests.notify.http_receivers import HttpReceiver

Receivers = Callable[..., HttpReceiver]


def rounds(notifier: Notifier) -> None:
    """Until no heartbeat is on its way."""
    end = time.monotonic() + WAIT
    notifier.tick()
    while any(notifier.heartbeats.attempts()):
        assert time.monotonic() < end
        notifier.wait(0.2)
        notifier.tick()


def test_a_sign_comes_at_once_and_in_its_time_and_not_while_the_daemon_is_unwell(
    receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    there, clock, well = receiver(), [0.0], [True]
    notifier = notifier_of(targets({"name": "alive", "heartbeat": there.url, "minutes": 5.0}))
    notifier.heartbeats.clock, notifier.heartbeats.well = lambda: clock[0], lambda: well[0]
    counts = []
    for moment, is_well in ((0.0, True), (299.0, True), (300.0, True), (600.0, False), (1800.0, False), (1801.0, True), (1802.0, True)):
        clock[0], well[0] = moment, is_well
        rounds(notifier)
        counts.append(len(there.asked))
    assert counts == [1, 1, 2, 2, 2, 3, 3]
    assert {(asked.method, asked.body) for asked in there.asked} == {("GET", b"")}


def test_messages_that_hang_and_a_journal_that_is_full_delay_no_sign(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    alive, clock = receiver(), [0.0]
    stuck = [receiver(hangs=True) for _ in range(20)]
    tables = [{"name": f"stuck-{number}", "webhook": there.url} for number, there in enumerate(stuck)]
    notifier = notifier_of(targets(*tables, {"name": "alive", "heartbeat": alive.url, "minutes": 1.0}))
    notifier.heartbeats.clock = lambda: clock[0]
    journal.outbox.announce("title", Notice("failed", "title", "text"))
    rounds(notifier)
    assert len(notifier._flights) == 16
    for number in range(1, 4):
        clock[0] = 60.0 * number
        rounds(notifier)
    assert len(alive.asked) == 4

    def full() -> None:
        raise Retryable(FaultCode.JOURNAL_UNAVAILABLE, "write", "the disk is full", "free space")

    notifier.know_targets = full  # type: ignore[method-assign]
    clock[0] = 300.0
    end = time.monotonic() + WAIT
    while len(alive.asked) < 5:
        assert time.monotonic() < end
        notifier.complaints.during(notifier.tick)
        notifier.wait(0.1)
    for flight in notifier._flights.values():
        flight.attempt.end()


def test_an_address_that_does_not_answer_is_said_once_and_its_return_once(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    there, clock = receiver(answers=[500, 500, 500]), [0.0]
    notifier = notifier_of(targets({"name": "alive", "heartbeat": there.url + "/S3CRET", "minutes": 5.0}))
    notifier.heartbeats.clock = lambda: clock[0]

    def troubles() -> list[tuple[str, str | None]]:
        with reading(journal.database.path) as connection:
            return [(target.target, target.error) for target in overview(connection, 0).targets]

    with capture_logs() as logs:
        for _ in range(3):
            rounds(notifier)
            rounds(notifier)
            clock[0] += 61.0
        assert troubles() == [("notify.targets.alive (heartbeat)", "error=500")]
        rounds(notifier)
        rounds(notifier)
    assert troubles() == [("notify.targets.alive (heartbeat)", None)]
    assert [entry["event"] for entry in logs] == ["a heartbeat did not arrive", "heartbeats arrive again"]
    assert "S3CRET" not in str(logs)


def test_a_target_that_becomes_a_heartbeat_takes_no_message_that_waited_and_keeps_no_error_of_before(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    there = receiver(answers=[500])
    notifier = notifier_of(targets({"name": "alive", "webhook": there.url}))
    journal.outbox.announce("title", Notice("failed", "title", "text"))
    deliver(notifier)
    assert journal.outbox.pending() == 1
    with capture_logs() as logs:
        notifier.adopt(targets({"name": "alive", "heartbeat": there.url, "minutes": 5.0}))
        rounds(notifier)
        rounds(notifier)
    assert [asked.method for asked in there.asked] == ["POST", "GET"] and journal.outbox.pending() == 0
    with reading(journal.database.path) as connection:
        assert [(target.target, target.error) for target in overview(connection, 0).targets] == [("notify.targets.alive (heartbeat)", None)]
    assert [entry["event_id"] for entry in logs] == ["notify.dropped"]
