"""Notifications reach a real HTTP server through Apprise: once, after failures too, and across restarts."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from daemon.config.settings import NotifySettings
from daemon.journal.journal import Journal
from daemon.publishing import notifier as notify
from daemon.publishing.notifier import Notifier, pause_after
from tests.journal.conftest import enter, reference
from tests.service import Service as Daemon

# One of the services that Apprise loads still imports a module that Python 3.13 takes away.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


class Service:
    """A service on the loopback that answers with the statuses it was given, then with 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
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


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "FIRST_PAUSE", 0.05)


def finish(journal: Journal, job: str, state: str, title: str) -> None:
    enter(journal, job, reference(digest=job))
    journal.jobs.start(job, None)
    journal.jobs.finish(job, state, (title, f"body of {title}"))


def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def rows(file: Path) -> list[tuple[str, int, str | None]]:
    with closing(sqlite3.connect(file)) as raw:
        return raw.execute("SELECT state, attempts, last_error FROM outbox ORDER BY id").fetchall()


@pytest.mark.parametrize(("state", "kind"), [("succeeded", "success"), ("partial", "warning"), ("failed", "failure")])
def test_a_finished_export_is_told_with_its_outcome(journal: Journal, service: Service, state: str, kind: str) -> None:
    finish(journal, "job", state, "run step 4")
    Notifier(NotifySettings(urls=(service.url,)), journal).deliver_due()
    (message,) = service.taken
    assert (message["title"], message["message"], message["type"]) == ("run step 4", "body of run step 4", kind)
    assert journal.outbox.pending() == 0


def test_a_service_that_fails_first_is_told_once_when_it_works_again(journal: Journal, service: Service, file: Path) -> None:
    service.statuses = [500, 503]
    finish(journal, "job", "succeeded", "run step 4")
    notifier = Notifier(NotifySettings(urls=(service.url,)), journal)
    notifier.deliver_due()
    ((state, attempts, error),) = rows(file)
    assert (state, attempts) == ("pending", 1)
    assert "500" in str(error)
    until(lambda: notifier.deliver_due() or journal.outbox.pending() == 0, "it is delivered")
    notifier.deliver_due()
    assert [message["title"] for message in service.taken] == ["run step 4"]
    assert (service.asked, rows(file)[0][:2]) == (3, ("delivered", 3))


def test_what_a_stopped_daemon_could_not_deliver_is_delivered_by_the_next(file: Path, service: Service) -> None:  # R6.5
    service.statuses = [500]
    first = Journal(file)
    finish(first, "a", "succeeded", "first")
    finish(first, "b", "failed", "second")
    early = Notifier(NotifySettings(urls=(service.url,)), first)
    early.deliver_due()
    first.close()
    assert [message["title"] for message in service.taken] == ["second"]
    second = Journal(file)
    late = Notifier(NotifySettings(urls=(service.url,)), second)
    late.start()
    try:
        until(lambda: late.wake() or len(service.taken) == 2, "the first message arrives")
    finally:
        late.stop()
        second.close()
    assert [message["title"] for message in service.taken] == ["second", "first"]
    assert not late.thread.is_alive()


def test_a_service_that_nobody_answers_for_is_an_error_in_words(journal: Journal, service: Service, file: Path) -> None:
    finish(journal, "job", "succeeded", "run step 4")
    Notifier(NotifySettings(urls=("json://127.0.0.1:9/hook",)), journal).deliver_due()
    ((state, attempts, error),) = rows(file)
    assert (state, attempts) == ("pending", 1)
    assert error


@pytest.mark.parametrize("url", ["slak://xoxb/S3CRET/token", "mailto://user:S3CRET@", "S3CRET-pasted-without-its-scheme"])
def test_a_url_that_no_service_has_is_said_without_its_secret(
    journal: Journal, file: Path, url: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(journal, "job", "succeeded", "run step 4")
    Notifier(NotifySettings(urls=(url,)), journal).deliver_due()
    ((_, _, error),) = rows(file)
    assert "notify.urls" in str(error)
    printed = capsys.readouterr()
    assert "S3CRET" not in f"{error}{caplog.text}{printed.out}{printed.err}"


def test_with_nobody_to_tell_nothing_is_tried(journal: Journal, file: Path) -> None:
    finish(journal, "job", "succeeded", "run step 4")
    Notifier(NotifySettings(), journal).deliver_due()
    assert rows(file) == [("pending", 0, None)]


def test_pauses_grow_to_an_hour_and_end_after_about_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses = [pause_after(attempts) for attempts in range(1, 31)]
    assert pauses[-1] is None
    known = [pause for pause in pauses if pause is not None]
    assert len(known) == 29
    assert known == sorted(known)
    assert (known[0], known[1], known[-1]) == (5.0, 10.0, 3600.0)
    assert 0.7 * 86400 < sum(known) < 1.3 * 86400


def test_what_concerns_no_job_is_announced_once(journal: Journal, service: Service) -> None:
    assert journal.outbox.announce("rebuilt 1", "failed", "ckptd: the journal was damaged", "look at that disk")
    assert not journal.outbox.announce("rebuilt 1", "failed", "ckptd: the journal was damaged", "look at that disk")
    assert journal.outbox.announce("rebuilt 2", "failed", "ckptd: the journal was damaged", "again")
    Notifier(NotifySettings(urls=(service.url,)), journal).deliver_due()
    assert [message["message"] for message in service.taken] == ["look at that disk", "again"]


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
