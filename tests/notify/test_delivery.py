"""Notifications reach a real HTTP server through Apprise: once, after failures too, and across restarts."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from daemon.cli.main import app
from daemon.config.notify import NotifySettings
from daemon.config.receivers import Receiver
from daemon.contract.faults.errors import Retryable, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secret_url import SecretUrl
from daemon.journal.file.opening import reading
from daemon.journal.journal import Journal
from daemon.journal.overview import overview
from daemon.journal.rows import Message, Notice
from daemon.publishing.telling import notifier as notify
from daemon.publishing.telling import sending, untold
from daemon.publishing.telling.notifier import Notifier, pause_after
from daemon.publishing.telling.outcome import NO_SERVICE, Outcome, without_secrets
from daemon.publishing.telling.sender import Sender
from tests.journal.entries import enter, reference
from tests.service import Service as Daemon

# One of the services that Apprise loads still imports a module that Python 3.13 takes away.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class Service:
    """A service on the loopback that answers with the statuses it was given, then with 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        self.leads_to = ""
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.asked += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = service.statuses.pop(0) if service.statuses else 200
                if status == 200:
                    service.taken.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if service.leads_to:
                    self.send_header("Location", service.leads_to)
                self.end_headers()

            def do_GET(self) -> None:
                service.asked += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False
        self.url = f"json://127.0.0.1:{self.server.server_address[1]}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    yield one
    one.close()


Notify = Callable[..., Notifier]


@pytest.fixture
def notify_at(journal: Journal, sending: Sender) -> Notify:
    """Makes a notifier of services by their URLs."""
    return lambda *urls: Notifier(NotifySettings(urls=urls), journal, begin=sending.begin)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 0.05)


def finish(journal: Journal, job: str, state: str, title: str) -> None:
    enter(journal, job, reference(digest=job))
    journal.jobs.start(job, None)
    journal.jobs.finish(job, state, Notice(state, title, f"body of {title}"))


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def rows(file: Path) -> list[tuple[str, int, str | None]]:
    """State of each delivery, its attempts, and the last error of its target."""
    with closing(sqlite3.connect(file)) as raw:
        return raw.execute(
            "SELECT state, attempts, last_error FROM delivery LEFT JOIN target ON digest = target ORDER BY message, target.rowid"
        ).fetchall()


def deliver(notifier: Notifier) -> None:
    """A round, and those after it until nothing is on its way: all in one moment, so that no pause ends within it on a busy box."""
    now, running = time.time(), notifier._clock
    notifier._clock = lambda: now
    notifier.tick()
    while notifier.sending:
        notifier.wait(0.5)
        notifier.tick()
    notifier._clock = running


def test_a_finished_export_is_told_with_its_outcome(journal: Journal, service: Service, notify_at: Notify) -> None:
    kinds = {"succeeded": "success", "partial": "warning", "failed": "failure"}
    for state in kinds:
        finish(journal, state, state, f"it {state}")
    deliver(notify_at(service.url))
    sent = [(message["title"], message["message"], message["type"]) for message in service.taken]
    assert sent == [(f"it {state}", f"body of it {state}", kind) for state, kind in kinds.items()]
    assert journal.outbox.pending() == 0


def test_what_a_stopped_daemon_could_not_deliver_is_delivered_by_the_next(file: Path, service: Service, sending: Sender) -> None:  # R6.5
    service.statuses = [500]
    first = Journal(file)
    finish(first, "a", "succeeded", "first")
    finish(first, "b", "failed", "second")
    early = Notifier(NotifySettings(urls=(service.url,)), first, begin=sending.begin)
    deliver(early)
    first.close()
    assert "500" in str(rows(file)[0]) and (service.asked, service.taken) == (1, []), (
        "the second waits for the first: messages come in order"
    )
    second = Journal(file)
    late = Notifier(NotifySettings(urls=(service.url,)), second, begin=sending.begin)
    late.start()
    try:
        until(lambda: late.wake() or len(service.taken) == 2, "the first message arrives")
    finally:
        late.stop()
        second.close()
    assert [message["title"] for message in service.taken] == ["first", "second"]
    assert not late.thread.is_alive()


def test_a_service_that_nobody_answers_for_is_an_error_in_words(journal: Journal, service: Service, notify_at: Notify, file: Path) -> None:
    finish(journal, "job", "succeeded", "run step 4")
    deliver(notify_at("json://127.0.0.1:9/hook"))
    ((state, attempts, error),) = rows(file)
    assert (state, attempts) == ("pending", 1)
    assert error


def test_a_url_that_no_service_has_is_said_once_without_its_secret(
    journal: Journal, file: Path, notify_at: Notify, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in ("first", "second"):
        finish(journal, job, "succeeded", job)
    with capture_logs() as logs:
        deliver(notify_at("slak://xoxb/S3CRET/token", "mailto://user:S3CRET@", "S3CRET-pasted-without-its-scheme"))
    assert [state for state, _, error in rows(file) if "no Apprise service" in str(error)] == ["abandoned"] * 6
    assert [entry["messages"] for entry in logs] == [2, 2, 2]
    printed = capsys.readouterr()
    assert "S3CRET" not in f"{rows(file)}{logs}{printed.out}{printed.err}"


def test_a_url_that_no_service_has_is_said_before_there_is_a_message_and_no_more_once_there_is_a_service(
    journal: Journal, file: Path, service: Service, sending: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*urls: str) -> Notifier:
        notifier = Notifier(NotifySettings(urls=urls), journal, begin=sending.begin, look=sending.look)
        until(lambda: notifier.tick() or not (notifier._looks or notifier._unseen), "it has looked")  # type: ignore[func-returns-value]
        return notifier

    def troubles() -> list[tuple[str, int, str | None]]:
        with reading(file) as connection:
            return [(target.target, target.failures, target.error) for target in overview(connection, 0).targets]

    with capture_logs() as logs:
        notifier = look("slak://xoxb/S3CRET/token", service.url)
        notifier.tick()
        assert troubles() == [("notify.urls.0 (slak)", 1, NO_SERVICE), ("notify.urls.1 (json)", 0, None)]
        finish(journal, "job", "succeeded", "run step 4")
        deliver(notifier)
    assert service.taken and [entry["target"] for entry in logs if entry["log_level"] == "error"] == ["notify.urls.0 (slak)"], "once"
    assert "S3CRET" not in str(logs)
    monkeypatch.setattr(sending, "look", lambda url: Answered(Outcome(None)))
    look("slak://xoxb/S3CRET/token", service.url)
    assert [failures for _, failures, _ in troubles()] == [0, 0], "its package was installed"


class Answered:
    """An attempt that has ended."""

    wait_handle = None

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def poll(self) -> Outcome:
        return self.outcome

    def end(self) -> None:
        return


def test_with_nobody_to_tell_nothing_is_tried(journal: Journal, file: Path) -> None:
    finish(journal, "job", "succeeded", "run step 4")
    deliver(Notifier(NotifySettings(), journal))
    assert (rows(file), journal.outbox.pending()) == ([], 0)


def test_pauses_grow_to_an_hour_and_end_after_about_two_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = [pause_after(failures) for failures in range(1, notify.MAX_ATTEMPTS)]
    assert len(known) == 59
    assert known == sorted(known)
    assert (known[0], known[1], known[-1]) == (5.0, 10.0, 3600.0)
    assert 1.7 * 86400 < sum(known) < 2.3 * 86400


def test_what_concerns_no_job_is_announced_once(journal: Journal, service: Service, notify_at: Notify) -> None:
    assert journal.outbox.announce("rebuilt 1", Notice("failed", "ckptd: the journal was damaged", "look at that disk"))
    assert not journal.outbox.announce("rebuilt 1", Notice("failed", "ckptd: the journal was damaged", "look at that disk"))
    assert journal.outbox.announce("rebuilt 2", Notice("failed", "ckptd: the journal was damaged", "again"))
    deliver(notify_at(service.url))
    assert [message["message"] for message in service.taken] == ["look at that disk", "again"]


@pytest.mark.slow
@pytest.mark.parametrize(("on", "told"), [(["failed"], ["failure"]), (["succeeded", "partial"], [])])
def test_a_rebuilt_journal_is_told_as_a_failure_to_those_who_want_failures(
    make_service: Callable[..., Daemon], service: Service, on: list[str], told: list[str]
) -> None:
    daemon = make_service(extra=f'[notify]\nurls = ["{service.url}"]\non = {json.dumps(on)}\n')
    daemon.start()
    assert daemon.stop() == 0
    (daemon.state / "journal.sqlite3").write_bytes(b"garbage" * 999)
    daemon.start()
    until(lambda: "was set aside and rebuilt" in daemon.log(), "the journal is rebuilt")
    daemon.wait_for(lambda value: value["daemon"]["healthy"] and value["journal"])
    if told:
        until(lambda: service.taken, "the message arrives")
    assert daemon.stop() == 0
    assert [message["type"] for message in service.taken] == told
    assert daemon.status()["outbox"] == ({"delivered": 1} if told else {})


def taken(service: Service) -> list[str]:
    return [message["title"] for message in service.taken]


class Answer:
    """A message to a service that says this at once, or (None) neither takes nor refuses it."""

    wait_handle = None

    def __init__(self, outcome: Outcome | None) -> None:
        self._outcome = outcome

    def poll(self) -> Outcome | None:
        return self._outcome

    def end(self) -> None:
        return


def test_a_dozen_services_that_never_answer_keep_no_message_from_the_others_and_each_message_costs_one_transaction(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, count, told = [f"json://silent-{number}/" for number in range(12)], 20, list[str]()

    def begin(receiver: Receiver, message: Message) -> Any:
        if receiver.url.get_secret_value() in hanging:
            return Answer(None)
        told.append(message.title)
        return Answer(Outcome(None))

    notifier = Notifier(NotifySettings(urls=(*hanging, "json://quick/")), journal, begin=begin)
    notifier.know_targets()
    for number in range(count):
        journal.outbox.announce(f"occasion {number}", Notice("failed", f"title {number}", "body"))
    notifier.tick()
    written, write = list[str](), journal.database.write

    def counting(name: str, function: Any) -> Any:
        written.append(name)
        return write(name, function)

    monkeypatch.setattr(journal.database, "write", counting)
    for _ in range(count):
        notifier.tick()
    assert told == [f"title {number}" for number in range(count)]
    assert written == ["delivered"] * count


def test_where_more_services_wait_than_are_told_at_once_one_with_many_messages_makes_room_after_each(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "AT_ONCE", 1)
    told = list[str]()

    def begin(receiver: Receiver, message: Message) -> Any:
        told.append(receiver.url.get_secret_value())
        return Answer(Outcome(None))

    urls = tuple(f"json://host-{number}/" for number in range(3))
    notifier = Notifier(NotifySettings(urls=urls), journal, begin=begin)
    notifier.know_targets()
    for number in range(4):
        journal.outbox.announce(f"occasion {number}", Notice("failed", f"title {number}", "body"))
    for _ in range(6):
        notifier.tick()
    assert sorted(told[:3]) == sorted(told[3:6]) == sorted(urls)


@pytest.mark.parametrize("status", [302, 204])
def test_an_answer_that_leads_elsewhere_is_no_delivery_and_is_not_followed(
    journal: Journal, service: Service, file: Path, notify_at: Notify, status: int
) -> None:
    """A message that is sent on becomes a GET without it, and takes the credentials of its URL along."""
    other = Service()
    service.statuses, service.leads_to = [status], f"http://127.0.0.1:{other.server.server_address[1]}/hook"
    try:
        finish(journal, "job", "succeeded", "run step 4")
        deliver(notify_at(service.url + "?redirect=yes"))
    finally:
        other.close()
    ((state, attempts, error),) = rows(file)
    assert (state, attempts, other.asked) == ("delivered" if status == 204 else "pending", 1, 0)
    assert status == 204 or f"error={status}" in str(error)


def test_a_message_that_a_service_does_not_take_holds_up_the_next_ones_for_three_tries_alone(
    journal: Journal, service: Service, notify_at: Notify
) -> None:
    service.statuses = [400, 400, 400]
    for title in ("first", "second"):
        finish(journal, title, "succeeded", title)
    notifier = notify_at(service.url)
    with capture_logs() as logs:
        until(lambda: deliver(notifier) or journal.outbox.pending() == 0, "the second arrives")
    assert (taken(service), service.asked) == (["second"], 4)
    assert [(entry["messages"], entry["attempts"]) for entry in logs if entry["event"] == "notifications are given up"] == [(1, 3)]


SWEEPS_WHILE_A_MESSAGE_IS_SENT = """
import subprocess, sys, time
from daemon.config.receivers import Receiver
from daemon.contract.faults.secret_url import SecretUrl
from daemon.journal.rows import Message
from daemon.publishing.telling.sender import Sender
from daemon.running.workers.containment import Enclosure, adopt_orphans

adopt_orphans()
sending = Sender().begin(Receiver("here", SecretUrl(sys.argv[1])), Message(1, "job", "succeeded", "title", "body", 0.0))
leader = subprocess.Popen(["sleep", "600"], start_new_session=True)
attempt = Enclosure("mark", 0, 1)
attempt.hold(leader.pid)
while not attempt.sweep():
    time.sleep(0.05)
attempt.close()
assert leader.wait(10) == -9
while (outcome := sending.poll()) is None:
    time.sleep(0.05)
print(outcome.error)
"""


def test_the_end_of_a_stage_does_not_end_the_message_that_is_being_sent(service: Service) -> None:
    """Both are the daemon's children, and only one of them is the attempt's."""
    done = subprocess.run(
        [sys.executable, "-c", SWEEPS_WHILE_A_MESSAGE_IS_SENT, service.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("None", 0), done.stderr
    assert taken(service) == ["title"]


def test_a_dead_service_is_asked_less_and_less_often_and_what_is_two_days_old_is_given_up_at_once_with_one_line(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 5.0)
    now, asked = [time.time()], list[float]()

    def begin(receiver: Receiver, message: Message) -> Answer:
        asked.append(now[0])
        return Answer(Outcome("no route"))

    for title in ("first", "second", "third"):
        finish(journal, title, "succeeded", title)
    notifier = Notifier(NotifySettings(urls=("json://dead",)), journal, begin=begin, clock=lambda: now[0])
    with capture_logs() as logs:
        while journal.outbox.pending():
            notifier.tick()
            now[0] += 1.0 if len(asked) < 5 else 60.0
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[0] <= 6 and pauses[4] > 60 and 3600 <= max(pauses) <= 3660
    assert notify.PATIENCE < len(asked) <= notify.MAX_ATTEMPTS and 47 < (asked[-1] - asked[0]) / 3600 < 50
    assert [entry["messages"] for entry in logs if entry["event"] == "notifications are given up"] == [3]


def test_what_waits_for_a_service_that_is_no_longer_named_is_dropped_and_a_new_one_gets_no_old_message(
    journal: Journal, service: Service, notify_at: Notify
) -> None:
    gone = "json://127.0.0.1:9/S3CRET"
    finish(journal, "a", "succeeded", "old")
    notifier = notify_at(gone)
    deliver(notifier)
    notifier.adopt(NotifySettings(urls=(service.url,)))
    with capture_logs() as logs:
        deliver(notifier)
    assert [(entry["target"], entry["messages"]) for entry in logs] == [("notify.urls.0 (json)", 1)]
    finish(journal, "b", "succeeded", "new")
    deliver(notifier)
    assert (taken(service), journal.outbox.pending()) == (["new"], 0)


def test_where_the_journal_can_take_nothing_a_message_that_arrived_is_not_sent_again(
    journal: Journal, service: Service, notify_at: Notify, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(journal, "a", "succeeded", "title")
    notifier = notify_at(service.url)
    with monkeypatch.context() as patch:
        patch.setattr(journal.outbox, "delivered", failing)
        notifier.tick()
        until(lambda: service.taken, "it is sent")
        for _ in range(5):
            notifier.wait(0.1)
            with suppress(Retryable):
                notifier.tick()
    deliver(notifier)
    assert (taken(service), service.asked, journal.outbox.pending()) == (["title"], 1, 0)


def failing(*_: object, **__: object) -> None:
    raise Retryable(FaultCode.JOURNAL_UNAVAILABLE, "write", "the disk is full", "free space")


@pytest.mark.slow
def test_a_daemon_that_is_killed_between_sending_and_recording_sends_one_copy_again(  # R6.5
    make_service: Callable[..., Daemon], service: Service
) -> None:
    daemon = make_service(extra=f'[notify]\nurls = ["{service.url}"]\n')
    daemon.start()
    assert daemon.stop() == 0
    journal = Journal(daemon.state / "journal.sqlite3")
    finish(journal, "a", "succeeded", "title")
    journal.close()
    daemon.start("before.delivered")
    assert daemon.wait_dead() == -signal.SIGKILL
    assert taken(service) == ["title"]
    daemon.start()
    daemon.wait_for(lambda value: value["outbox"].get("delivered") == 1)
    assert daemon.stop() == 0
    assert taken(service) == ["title", "title"]


URL = "json://user-S3CRETA:pass%2FS3CRETB@host-s3cretc:8080/S3CRETD/path?token=S3CRETE&+X-Key=S3CRETF"


@pytest.mark.parametrize(
    "said", [URL, "401 for url: /S3CRETD/path?token=S3CRETE", "no host HOST-S3CRETC", "pass/S3CRETB or pass%2FS3CRETB", "X-Key: S3CRETF"]
)
def test_nothing_of_a_url_is_left_in_what_a_service_said(said: str) -> None:
    assert not re.search("S3CRET", without_secrets(f"error=500 {said} end", URL), re.IGNORECASE)
    assert "error=500" in without_secrets(f"error=500 {said} end", URL)


def test_neither_journal_nor_status_nor_log_nor_check_holds_a_secret_of_a_url(make_service: Callable[..., Daemon]) -> None:
    secrets = ["json://user:S3CRET-word@127.0.0.1:9/S3CRET-path?token=S3CRET-token", "slak://S3CRET/x", "S3CRET-alone"]
    daemon = make_service(extra=f"[notify]\nurls = {json.dumps(secrets)}\n")
    assert daemon.run_verb("check") != 0
    checked = daemon.said
    daemon.start()
    daemon.wait_for(lambda value: value["daemon"]["healthy"] and len(value["notified"]) == 3)
    assert daemon.stop() == 0
    journal = Journal(daemon.state / "journal.sqlite3")
    finish(journal, "a", "succeeded", "title")
    journal.close()
    daemon.start()
    value = daemon.wait_for(lambda value: [one["given_up"] for one in value["notified"]] == [0, 1, 1] and value["notified"][0]["failures"])
    assert daemon.run_verb("status") == 0
    assert daemon.stop() == 0
    everything = [checked, daemon.said, daemon.log(), json.dumps(value)]
    kept = b"".join(path.read_bytes() for path in daemon.state.rglob("*") if path.is_file())
    assert "S3CRET" not in "".join(everything) and b"S3CRET" not in kept
    assert "notify.urls.1 (slak): no Apprise service" in checked and "notify.urls.2: no Apprise service" in checked
    assert "notify.urls.0" not in checked
    assert "not notified notify.urls.1 (slak) (1 given up within a week: `ckptd notify list`)" in daemon.said


def test_the_process_that_sends_inherits_no_secret_of_the_daemons_environment(
    journal: Journal, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3CRET")
    monkeypatch.setenv("CKPTD_NOTIFY__URLS", "json://S3CRET")
    seen = tmp_path / "seen"
    (tmp_path / "sitecustomize.py").write_text(f"import os; open({str(seen)!r}, 'w').write(repr(dict(os.environ)))")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    finish(journal, "a", "succeeded", "title")
    deliver(Notifier(NotifySettings(urls=(service.url,)), journal))
    assert taken(service) == ["title"]
    assert "S3CRET" not in seen.read_text() and "PATH" in seen.read_text()


def test_several_urls_in_one_entry_are_refused_since_one_would_be_told_again_because_of_the_other() -> None:
    assert sending.fault_of(SecretUrl("json://a/x, json://b/y")) == "it contains 2 URLs; list each one separately"
    assert sending.fault_of(SecretUrl("mailto://user:pass@example.com?to=a@example.com,b@example.com")) is None


def test_what_the_journal_can_not_take_is_sent_without_it_to_each_service_until_it_has_it(
    journal: Journal, service: Service, notify_at: Notify, monkeypatch: pytest.MonkeyPatch
) -> None:  # R6.2
    monkeypatch.setattr(untold, "PAUSE", 0.1)
    service.statuses = [503]
    urls = (service.url, "slak://xoxb/S3CRET")
    notifier = notify_at(*urls)
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(notifier, "know_targets", failing)
        notifier.tell(Notice("disk_low", "no room", "delete something"))
        notifier.tell(Notice("disk_low", "room again", "it goes on"))
        begun = time.monotonic()
        while notifier.sending and time.monotonic() < begun + 60:
            with suppress(Retryable):
                notifier.tick()
            notifier.wait(0.1)
    assert (taken(service), service.asked) == (["no room", "room again"], 3)
    given_up = [entry["target"] for entry in logs if entry["event"] == "notifications are given up"]
    assert given_up == ["notify.urls.1 (slak)"] * 2
    assert "S3CRET" not in json.dumps(logs, default=str)


def test_a_test_message_goes_to_each_service_and_each_answer_is_told(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[notify]\nurls = ["{service.url}", "slak://S3CRET/x"]\n[state]\ndirectory = "{tmp_path}/state"\n')
    done = CliRunner().invoke(app, ["notify", "test", "--config", str(file)])
    assert done.exit_code == 1 and "S3CRET" not in done.output
    assert done.output.splitlines()[0] == "notify.urls.0 (json): delivered"
    assert done.output.splitlines()[1].startswith("notify.urls.1 (slak): no Apprise service")
    (message,) = service.taken
    assert message["title"].endswith(": a test message") and message["type"] == "info"
    service.statuses = [500]
    file.write_text(f'[notify]\nurls = ["{service.url}"]\n[state]\ndirectory = "{tmp_path}/state"\n')
    done = CliRunner().invoke(app, ["notify", "test", "--json", "--config", str(file)])
    (answer,) = json.loads(done.output)
    assert (done.exit_code, answer["service"], answer["delivered"]) == (1, "notify.urls.0 (json)", False) and "500" in answer["error"]
    file.write_text("")
    done = CliRunner().invoke(app, ["notify", "test", "--config", str(file)])
    assert isinstance(done.exception, UsageError) and "notify.urls is empty" in str(done.exception)
