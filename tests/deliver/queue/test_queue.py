"""The queue over a real journal and real processes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.delivering.queue import Wanted
from daemon.journal.shipment_rows import NewShipment
from tests.deliver.queue.yard import PASSED, Aim, Yard, ended, run_until
from tests.deliver.sites.reference import SITE

Script = Callable[..., Aim]
Delivered = Callable[[], list[str]]
OK = {"do": "deliver"}


def step_of(line: str) -> int:
    return int(line.split()[0].rsplit("-", 2)[1])


def test_an_export_that_ends_is_delivered_whole_and_the_journal_has_the_receipt(yard: Yard, site: SITE) -> None:
    job = yard.end(100)
    queue = yard.queue(Aim(options=site.options(), key=site.secret))
    run_until(queue, lambda: yard.row(job).state == "delivered")
    row, visible = yard.row(job), site.visible("run-a")
    assert row.receipt is not None and row.attempts == 1 and row.resume == {}
    assert list(visible) == [row.receipt.version] == [site.current("run-a")]
    assert yard.journal.shipments.next_due() is None
    assert not list((yard.state / "deliveries").glob("*/*.tmp"))


def test_the_oldest_step_of_a_run_comes_first_and_one_at_a_time(yard: Yard, script: Script, delivered: Delivered) -> None:
    jobs = [yard.end(step) for step in (300, 100, 200)]
    queue = yard.queue(script(OK))
    most = 0

    def done() -> bool:
        nonlocal most
        most = max(most, len(yard.journal.shipments.running()))
        return all(yard.row(job).state == "delivered" for job in jobs)

    run_until(queue, done)
    assert ([step_of(line) for line in delivered()], most) == ([100, 200, 300], 1)


def test_what_a_person_asks_for_comes_first(yard: Yard, script: Script, delivered: Delivered) -> None:
    jobs = [yard.end(step) for step in (100, 200)]
    assert yard.journal.shipments.enter(jobs[1], [NewShipment("far", move="force", by_hand=True)])
    queue = yard.queue(script(OK))
    run_until(queue, lambda: all(yard.row(job).state == "delivered" for job in jobs))
    assert [line.split()[1:3] for line in delivered()] == [[jobs[1], "force"], [jobs[0], "move"]]


def test_a_target_that_fails_holds_up_no_other(yard: Yard, script: Script, site: SITE) -> None:
    job = yard.end(100, ("far", "down"))
    down = script({"do": "status", "status": 503}, name="down")
    queue = yard.queue(down, Aim(options=site.options()))
    run_until(queue, lambda: yard.row(job).state == "delivered" and yard.row(job, "down").failures == 1)
    row = yard.row(job, "down")
    assert (row.state, row.fault and row.fault.code) == ("waiting", "delivery-far-end")


@pytest.mark.parametrize(("after", "least"), [(None, 30.0), ("90", 90.0), ("100000", 3600.0)])
def test_what_may_pass_is_tried_again_after_as_long_as_the_far_end_asks(
    yard: Yard, script: Script, delivered: Delivered, after: str | None, least: float
) -> None:
    now = [1e9]
    job = yard.end(100)
    queue = yard.queue(script({"do": "status", "status": 429, "after": after or "30"}, OK), clock=lambda: now[0])
    run_until(queue, lambda: yard.row(job).failures == 1)
    assert yard.row(job).retry_at == 1e9 + least
    now[0] += least - 1
    queue.tick()
    assert (yard.row(job).attempts, delivered()) == (1, [])
    now[0] += 1
    run_until(queue, lambda: yard.row(job).state == "delivered")


def test_a_refusal_waits_for_a_person_and_another_secret_is_what_a_person_does(yard: Yard, script: Script, delivered: Delivered) -> None:
    job, refused = yard.end(100), script({"do": "status", "status": 401}, {"do": "status", "status": 403}, OK, key="old-token-1234")
    queue = yard.queue(refused)
    run_until(queue, lambda: yard.row(job).state == "failed")
    queue.adopt(Wanted((replace(refused, bandwidth=7),), PASSED))  # nothing by which it failed
    queue.tick()
    assert yard.row(job).state == "failed"
    queue.adopt(Wanted((replace(refused, key="new-token-1234"),), PASSED))
    run_until(queue, lambda: yard.row(job).attempts == 2 and yard.row(job).state == "failed")
    yard.journal.shipments.enter(job, [NewShipment("far", by_hand=True)])
    run_until(queue, lambda: yard.row(job).state == "delivered")
    assert len(delivered()) == 1


def test_after_a_week_a_failing_delivery_is_left_to_a_person(yard: Yard, script: Script) -> None:
    now = [1e9]
    job = yard.end(100)
    yard.journal.database.write(
        "age", lambda c: c.execute("UPDATE shipment SET attempts = 19, failures = 19, failing_since = ?", (1e9 - 7 * 86_400,))
    )
    queue = yard.queue(script({"do": "status", "status": 500}), clock=lambda: now[0])
    run_until(queue, lambda: yard.row(job).state == "failed")


def test_nothing_old_goes_to_a_new_target_and_nothing_more_to_one_that_left(yard: Yard, script: Script, delivered: Delivered) -> None:
    old = yard.end(100, ("gone",))
    gone = script({"do": "wait"}, name="gone")
    queue = yard.queue(gone)
    run_until(queue, lambda: len(yard.journal.shipments.running()) == 1)
    queue.adopt(Wanted((replace(gone, name="new"),), PASSED))
    run_until(queue, lambda: not queue.progress())
    assert [(row.target, row.state) for row in yard.journal.shipments.of(old)] == [("gone", "dropped")]
    assert delivered() == []


def test_an_export_that_was_removed_fails_and_one_that_was_replaced_is_not_wanted_any_more(yard: Yard, script: Script) -> None:
    removed, replaced = yard.end(100), yard.end(200)
    shutil.rmtree(yard.row(removed).export)
    yard.publish(200, job="another", seed=5)
    queue = yard.queue(script(OK))
    run_until(queue, lambda: yard.row(removed).state == "failed" and yard.row(replaced).state == "dropped")
    fault = yard.row(removed).fault
    assert fault is not None and fault.code == "delivery-source" and f"ckptd queue retry {removed}" in fault.remedy
    assert yard.row(replaced).reason == "the export of another has taken its place"


def test_an_output_that_is_away_is_waited_for(yard: Yard, script: Script, delivered: Delivered) -> None:
    now = [1e9]
    job = yard.end(100)
    os.rename(yard.output, yard.folder / "away")
    yard.output.mkdir()  # the mount point
    queue = yard.queue(script(OK), clock=lambda: now[0])
    run_until(queue, lambda: yard.row(job).failures == 1)
    yard.output.rmdir()
    os.rename(yard.folder / "away", yard.output)
    now[0] += 30
    run_until(queue, lambda: yard.row(job).state == "delivered")
    assert len(delivered()) == 1


def test_an_export_that_is_exchanged_while_it_is_carried_is_not_taken_for_the_old_one(yard: Yard, script: Script) -> None:
    job = yard.end(100)
    queue = yard.queue(script({"do": "wait"}))
    run_until(queue, lambda: bool(queue.progress()) and queue.progress()[0].message == "sending")
    shutil.rmtree(yard.row(job).export)
    yard.publish(100, job="another", seed=5)
    (yard.folder / "scripted" / "go").touch()
    run_until(queue, lambda: not queue.progress())
    assert (yard.row(job).state, yard.row(job).receipt) == ("dropped", None)


def test_an_export_that_is_made_anew_while_it_is_carried_is_carried_again(yard: Yard, script: Script, delivered: Delivered) -> None:
    job = yard.end(100)
    queue = yard.queue(script({"do": "wait"}, OK))
    run_until(queue, lambda: bool(queue.progress()) and queue.progress()[0].message == "sending")
    yard.journal.shipments.enter(job, [NewShipment("far")])
    (yard.folder / "scripted" / "go").touch()
    run_until(queue, lambda: yard.row(job).state == "delivered")
    assert (len(delivered()), yard.row(job).attempts) == (2, 2)


def test_a_stop_ends_what_runs_and_the_next_daemon_goes_on_with_the_notes(yard: Yard, script: Script, delivered: Delivered) -> None:
    job = yard.end(100)
    queue = yard.queue(script({"do": "wait"}))
    queue.start()
    end = time.monotonic() + 60
    while yard.row(job).resume != {"seen": {"attempts": 1}}:
        assert time.monotonic() < end
        time.sleep(0.02)
    queue.stop()
    row = yard.row(job)
    assert (row.state, row.failures, queue.thread.is_alive()) == ("waiting", 0, False)
    run_until(yard.queue(script(OK)), lambda: yard.row(job).state == "delivered")
    assert len(delivered()) == 1


def test_a_journal_that_takes_no_writes_for_a_while_loses_no_note_and_no_end(
    yard: Yard, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    from daemon.contract.faults.errors import Retryable

    job = yard.end(100)
    queue = yard.queue(script({"do": "wait"}))
    run_until(queue, lambda: bool(queue.progress()))
    write, full = yard.journal.database.write, [True]

    def refuse(name: str, function: Any) -> Any:
        if full[0]:
            raise Retryable("disk-full", "write", "no space left", "free space")
        return write(name, function)

    monkeypatch.setattr(yard.journal.database, "write", refuse)
    (yard.folder / "scripted" / "go").touch()
    end = time.monotonic() + 60
    while (flight := next(iter(queue._flights.values()))).end is None:
        assert time.monotonic() < end
        queue.complaints.during(queue.tick)
        queue.wait(0.05)
    assert flight.end.receipt is not None
    full[0] = False
    run_until(queue, lambda: yard.row(job).state == "delivered")
    assert yard.row(job).attempts == 1


def test_two_daemons_that_deliver_one_run_leave_one_version_and_no_half(tmp_path: Path, site: SITE) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    with Yard(tmp_path / "a") as one, Yard(tmp_path / "b") as two:
        queues = [(yard, yard.end(100), yard.queue(Aim(options=site.options()))) for yard in (one, two)]
        end = time.monotonic() + 60
        while any(yard.row(job).state != "delivered" for yard, job, _ in queues):
            assert time.monotonic() < end
            for _, _, queue in queues:
                queue.tick()
                queue.wait(0.02)
        receipts = [yard.row(job).receipt for yard, job, _ in queues]
    assert receipts[0] and receipts[1] and receipts[0].version == receipts[1].version
    assert list(site.visible("run-a")) == [receipts[0].version]


def test_a_secret_reaches_the_process_and_no_log_journal_or_note(yard: Yard, script: Script) -> None:
    secret = "hush-hush-0123456789"
    job = yard.end(100)
    with ended(yard.queue(script({"do": "leak"}, key=secret))) as queue:
        run_until(queue, lambda: yard.row(job).failures == 1)
    log = (yard.state / "deliveries" / job / "far.1.log").read_text()
    assert "the secret is ***" in log
    row = yard.row(job)
    assert row.fault is not None and "refused ***" in row.fault.cause and set(row.resume) == {"seen"}
    for path in yard.state.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path


def test_a_secret_in_what_a_far_end_says_is_hidden_in_the_receipt(yard: Yard, script: Script) -> None:
    secret = "hush-hush-0123456789"
    job = yard.end(100)
    queue = yard.queue(script({"do": "deliver", "place": f"https://far/?key={secret}"}, key=secret))
    run_until(queue, lambda: yard.row(job).state == "delivered")
    row = yard.row(job)
    assert row.receipt is not None and row.receipt.place == "https://far/?key=***"


def test_a_far_end_that_is_down_is_asked_once_a_pause_whatever_waits_for_it(yard: Yard, script: Script, delivered: Delivered) -> None:
    now = [1e9]
    jobs = [yard.end(step) for step in (100, 200, 300)]
    queue = yard.queue(script({"do": "status", "status": 503}, {"do": "status", "status": 503}, OK), clock=lambda: now[0])
    run_until(queue, lambda: sum(yard.row(job).attempts for job in jobs) == 1 and not queue.progress())
    for _ in range(20):
        queue.tick()
    assert [yard.row(job).attempts for job in jobs] == [1, 0, 0]
    now[0] += 30
    run_until(queue, lambda: sum(yard.row(job).failures for job in jobs) == 2)
    now[0] += 59
    queue.tick()
    assert sum(yard.row(job).attempts for job in jobs) == 2, "a second failure in a row waits twice as long"
    now[0] += 1
    run_until(queue, lambda: all(yard.row(job).state == "delivered" for job in jobs))
    assert len(delivered()) == 3


def test_what_a_person_asks_for_is_tried_at_once_at_a_far_end_that_was_down(yard: Yard, script: Script, delivered: Delivered) -> None:
    jobs, now = [yard.end(step) for step in (100, 200)], [1e9]
    queue = yard.queue(script({"do": "status", "status": 503}, OK), clock=lambda: now[0])
    run_until(queue, lambda: yard.row(jobs[0]).failures == 1)
    assert yard.journal.shipments.enter(jobs[1], [NewShipment("far", by_hand=True)])
    run_until(queue, lambda: all(yard.row(job).state == "delivered" for job in jobs[1:]))
    assert [step_of(line) for line in delivered()] == [200]


def test_a_secret_that_cannot_be_read_fails_with_what_to_do(yard: Yard, script: Script) -> None:
    job = yard.end(100)
    queue = yard.queue(script(OK, key="unreadable"))
    run_until(queue, lambda: yard.row(job).state == "failed")
    fault = yard.row(job).fault
    assert fault is not None and fault.cause == "its secret can't be read: there is no such file"


def test_people_are_told_once_of_what_fails_at_a_target_for_one_reason(yard: Yard, script: Script) -> None:
    from daemon.journal.outbox import Target

    yard.journal.outbox.adopt([Target("a", "notify.urls.0", json.dumps({"on": ["delivery_failed"]}))])
    jobs = [yard.end(step) for step in (100, 200)]
    queue = yard.queue(script({"do": "status", "status": 403}), told=True)
    run_until(queue, lambda: all(yard.row(job).state == "failed" for job in jobs))
    rows = yard.journal.database.read("SELECT kind, title FROM outbox")
    assert [tuple(row) for row in rows] == [("delivery_failed", "run-a 100: not delivered to far")]
