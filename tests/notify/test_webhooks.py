"""Webhooks: signed so that the code of others verifies them, sent to the configured address alone, within a bounded time."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from daemon.journal.journal import Journal
from daemon.journal.rows import Notice
from daemon.publishing.telling import notifier as notify
from daemon.publishing.telling import sender as senders
from daemon.publishing.telling import webhook
from daemon.publishing.telling.sender import Sender
from tests.notify.conftest import SECRET, WAIT, Notify, Targets, deliver, enter_all
from tests.notify.http_receivers import HttpReceiver

Receivers = Callable[..., HttpReceiver]
PAGE = Path(__file__).parents[2] / "docs/webhooks.md"
ABOUT = {"events": ["partial", "rejected"], "run": "llama", "step": 4, "verdict": "2 of 3", "rejected": ["onnx-int8"]}


def announce(journal: Journal, *titles: str, kind: str = "failed") -> None:
    for title in titles:
        journal.outbox.announce(title, Notice(kind, title, f"body of {title}"))


def titles_of(receiver: HttpReceiver) -> list[str]:
    return [json.loads(asked.body)["data"]["title"] for asked in receiver.asked]


def test_a_request_is_verified_by_the_code_of_the_page_once_and_in_its_time_and_with_its_body(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    there = receiver()
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}))
    announce(journal, "Exporte überall")
    deliver(notifier)
    (asked,) = there.asked
    scope: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)[0], scope)
    verified, seen = scope["verified"], set[str]()
    assert not verified(SECRET, asked.headers, asked.body.replace(b"failed", b"passed"), seen)
    assert not verified(SECRET.replace("UzND", "UzNE"), asked.headers, asked.body, seen)
    assert not verified(SECRET, {**asked.headers, "webhook-timestamp": str(int(time.time()) - 301)}, asked.body, seen)
    assert verified(SECRET, asked.headers, asked.body, seen)
    assert not verified(SECRET, asked.headers, asked.body, seen), "it was sent again"
    assert (asked.method, asked.headers["content-type"]) == ("POST", "application/json")


def test_the_library_of_the_standard_verifies_a_request(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    library = pytest.importorskip("standardwebhooks.webhooks")
    there = receiver()
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}))
    announce(journal, "title")
    deliver(notifier)
    (asked,) = there.asked
    assert library.Webhook(SECRET).verify(asked.body, asked.headers)["type"] == "failed"
    with pytest.raises(library.WebhookVerificationError):
        library.Webhook(SECRET).verify(asked.body + b" ", asked.headers)


def test_the_body_says_what_the_page_says(journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify) -> None:
    there = receiver()
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}))
    journal.outbox.announce("once", Notice("partial", "title", "text", ABOUT))
    deliver(notifier)
    sent = json.loads(there.asked[0].body)
    shown = json.loads(re.findall(r"```json\n(.+?)```", PAGE.read_text(), re.DOTALL)[0])
    assert (sent.keys(), sent["data"].keys()) == (shown.keys(), shown["data"].keys())
    assert sent["type"] == "partial"
    assert {key: sent["data"][key] for key in ABOUT} == ABOUT
    assert (sent["data"]["title"], sent["data"]["text"], sent["data"]["artifact"]) == ("title", "text", None)


def test_each_attempt_has_the_same_id_and_body_and_its_own_time(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 1.1)
    one, other = receiver(answers=[500]), receiver()
    notifier = notifier_of(targets({"name": "one", "webhook": one.url}, {"name": "other", "webhook": other.url}))
    announce(journal, "first", "second")
    end = time.monotonic() + WAIT
    while journal.outbox.pending() and time.monotonic() < end:
        deliver(notifier)
        time.sleep(0.05)
    first, again, second = one.asked
    assert (first.headers["webhook-id"], first.body) == (again.headers["webhook-id"], again.body)
    assert int(again.headers["webhook-timestamp"]) > int(first.headers["webhook-timestamp"])
    ids = {asked.headers["webhook-id"] for asked in (first, second, *other.asked)}
    assert len(ids) == 4, "another message, or another target, has another id"


@pytest.mark.parametrize(
    ("status", "state"), [(204, "delivered"), (302, "pending"), (400, "abandoned"), (404, "abandoned"), (500, "pending")]
)
def test_what_an_answer_means(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify, monkeypatch: pytest.MonkeyPatch, status: int, state: str
) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 1e-9)
    elsewhere = receiver()
    there = receiver(answers=[(status, {"Location": elsewhere.url})] * 3)
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}))
    announce(journal, "title")
    for _ in range(3):
        if journal.outbox.pending():
            notifier.tick()
            while notifier._flights:
                notifier.wait(0.5)
                notifier._collect()
    assert len(there.asked) == (1 if state == "delivered" else 3)
    assert [row[0] for row in journal.database.read("SELECT state FROM delivery")] == [state]
    assert elsewhere.asked == [], "a redirect is not followed"


@pytest.mark.parametrize(("header", "least", "most"), [("1800", 1795, 1801), ("date", 1795, 1801), ("999999", 3599, 3601), ("soon", 4, 6)])
def test_a_service_says_when_it_wants_to_be_asked_again(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify, header: str, least: float, most: float
) -> None:
    import email.utils

    said = email.utils.formatdate(time.time() + 1801, usegmt=True) if header == "date" else header
    there = receiver(answers=[(429, {"Retry-After": said})])
    clock = time.time()
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}), clock=lambda: clock)
    announce(journal, "title")
    deliver(notifier)
    due = journal.outbox.next_due()
    assert due is not None and least <= due - clock <= most


def test_a_certificate_that_nobody_vouches_for_gets_nothing(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify, tmp_path: Path
) -> None:
    certificate = tmp_path / "own.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(certificate),
         "-out", str(tmp_path / "c"), "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    certificate.write_text(certificate.read_text() + (tmp_path / "c").read_text())
    there = receiver(certificate=certificate)
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}))
    announce(journal, "title")
    with capture_logs() as logs:
        deliver(notifier)
    assert there.asked == [] and "SSLError" in str(logs)
    sender = Sender()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "c"))
            trusting = notify.Notifier(notifier._settings, journal, begin=sender.begin, clock=lambda: time.time() + 60)
            deliver(trusting)
    finally:
        sender.end()
    assert titles_of(there) == ["title"], "by who is trusted it is accepted"


@pytest.mark.parametrize(
    ("manners", "count"), [({"hangs": True}, 100), ({"drips": True}, 100), pytest.param({"hangs": True}, 1000, marks=pytest.mark.slow)]
)
def test_a_service_that_never_ends_its_answer_delays_no_other_and_not_a_thousand_messages(
    journal: Journal, receiver: Receivers, targets: Targets, manners: dict[str, bool], count: int
) -> None:
    """All of them in order and once, through a process of its own, while the other holds its call."""
    stuck, well = receiver(**manners), receiver()
    sender = Sender()
    settings = targets({"name": "stuck", "webhook": stuck.url}, {"name": "well", "webhook": well.url})
    notifier = notify.Notifier(settings, journal, begin=sender.begin)
    notifier.know_targets()
    names = [f"{number:04}" for number in range(count)]

    enter_all(journal, names)
    try:
        end = time.monotonic() + 5 * WAIT
        while journal.database.read("SELECT count(*) FROM delivery WHERE state = 'delivered'")[0][0] < len(names):
            assert time.monotonic() < end
            notifier.tick()
            notifier.wait(0.5)
        assert titles_of(well) == names
        assert set(titles_of(stuck)) == {names[0]}, "however often it is tried meanwhile"
        assert journal.outbox.pending() == len(names)
    finally:
        for flight in notifier._flights.values():
            flight.attempt.end()
        sender.end()


def test_an_attempt_that_is_over_its_time_is_given_back(
    journal: Journal, receiver: Receivers, targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "LIMIT_SECONDS", 1.0)
    there, sender = receiver(drips=True), Sender()
    notifier = notify.Notifier(targets({"name": "hook", "webhook": there.url}), journal, begin=sender.begin)
    notifier.know_targets()
    announce(journal, "title")
    try:
        with capture_logs() as logs:
            deliver(notifier)
    finally:
        sender.end()
    assert [entry["error"] for entry in logs] == ["no answer within 1 s"] and journal.outbox.pending() == 1


def test_a_service_that_fails_for_a_day_gets_every_message_in_order(
    journal: Journal, receiver: Receivers, targets: Targets, notifier_of: Notify
) -> None:
    """A day of simulated time; the requests are real."""
    there, start = receiver(), time.time()
    clock = [start]
    notifier = notifier_of(targets({"name": "hook", "webhook": there.url}), clock=lambda: clock[0])
    names, taken_from = [f"{hour:02}" for hour in range(24)], 0
    there.answers = [500] * 10_000
    for name in names:
        announce(journal, name)
        for _ in range(12):
            deliver(notifier)
            clock[0] += 300.0
    assert clock[0] - start == 86_400 and 24 <= len(there.asked) < 60
    taken_from, there.answers = len(there.asked), []
    for _ in range(3):
        deliver(notifier)
        clock[0] += 1800.0
    assert titles_of(there)[taken_from:] == names
    assert {row[0] for row in journal.database.read("SELECT state FROM delivery")} == {"delivered"}


def test_the_signature_is_that_of_the_standards_example() -> None:
    """From the tests of the reference libraries."""
    body = b'{"test": 2432232314}'
    given = webhook.signature("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert given == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/S3CRET/path?token=S3CRET", "https://user:S3CRET@no-such-host.invalid/S3CRET"])
def test_what_is_said_of_an_address_that_does_not_answer_has_nothing_of_it(
    journal: Journal, targets: Targets, notifier_of: Notify, url: str
) -> None:
    notifier = notifier_of(targets({"name": "hook", "webhook": url}))
    announce(journal, "title")
    with capture_logs() as logs:
        deliver(notifier)
    assert [entry["event"] for entry in logs] == ["a notification did not arrive"] and logs[0]["error"]
    kept = journal.database.path.read_bytes()
    assert "S3CRET" not in str(logs) and b"S3CRET" not in kept and b"no-such-host" not in kept
