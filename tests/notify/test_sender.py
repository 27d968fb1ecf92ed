"""One process sends the messages: to several services at once, each within its own time, and none learns another's secrets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from daemon.config.receivers import Kind, Receiver
from daemon.contract.faults.secret_url import SecretUrl
from daemon.journal.rows import Message
from daemon.publishing.telling import sender as senders
from daemon.publishing.telling.outcome import Attempt, Outcome
from daemon.publishing.telling.sender import Sender

WAIT = 60.0


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[], int]], str]]:
    """Makes a service that answers with the status that a function gives; gives its host and port."""
    servers: list[ThreadingHTTPServer] = []

    def make(answer: Callable[[], int]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(answer())
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_address[1]}"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Sender, list[int]]]:
    """A sender, and the processes that it has started."""
    started, real = list[int](), senders.subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        child = real(*arguments, **options)
        started.append(child.pid)
        return child

    monkeypatch.setattr(senders.subprocess, "Popen", start)
    sender = Sender()
    yield sender, started
    sender.end()


def begin(sender: Sender, url: str, title: str = "title") -> Attempt:
    return sender.begin(Receiver("here", SecretUrl(url)), Message(1, "job", "succeeded", title, "body", 0.0))


def outcome_of(attempt: Attempt) -> Outcome:
    end = time.monotonic() + WAIT
    while (outcome := attempt.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return outcome


def test_one_process_sends_all_and_ends_when_there_has_been_nothing_for_a_while(
    sender: tuple[Sender, list[int]], serve: Callable[[Callable[[], int]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = serve(lambda: 200)
    assert [outcome_of(begin(sender[0], f"json://{host}/{number}")).error for number in range(20)] == [None] * 20
    assert len(sender[1]) == 1
    process = sender[0]._process
    monkeypatch.setattr(senders, "IDLE_SECONDS", 0.0)
    time.sleep(0.01)
    sender[0].tidy()
    assert sender[0]._process is None and process is not None and process.has_ended()


def test_a_service_that_hangs_delays_no_other_and_costs_a_process(
    sender: tuple[Sender, list[int]], serve: Callable[[Callable[[], int]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, asked = threading.Event(), threading.Event()

    def hang() -> int:
        asked.set()
        go_on.wait(WAIT)
        return 200

    silent, well = serve(hang), serve(lambda: 200)
    try:
        held = begin(sender[0], f"json://{silent}/?cto=60&rto=60")
        assert asked.wait(WAIT)
        assert [outcome_of(begin(sender[0], f"json://{well}/{number}")).error for number in range(5)] == [None] * 5
        assert held.poll() is None and len(sender[1]) == 1
        held._deadline = 0.0  # type: ignore[attr-defined]
        assert outcome_of(held).error == "no answer within 60 s"
        process = sender[0]._process
        assert outcome_of(begin(sender[0], f"json://{well}/")).error is None
        sender[0].tidy()
        assert len(sender[1]) == 2 and process is not None and process.has_ended()
    finally:
        go_on.set()


def test_what_one_service_says_never_holds_a_part_of_anothers_url(
    sender: tuple[Sender, list[int]], serve: Callable[[Callable[[], int]], str]
) -> None:
    both = threading.Barrier(2)

    def refuse() -> int:
        both.wait(WAIT)
        return 400

    hosts = [serve(refuse), serve(refuse)]
    attempts = [begin(sender[0], f"json://user:S3CRET-{place}@{host}/") for place, host in enumerate(hosts)]
    for outcome in map(outcome_of, attempts):
        assert outcome.rejected and outcome.error is not None and outcome.error.count("error=400") == 1 and "S3CRET" not in outcome.error


def test_a_process_that_is_killed_costs_what_it_was_sending_and_nothing_after(
    sender: tuple[Sender, list[int]], serve: Callable[[Callable[[], int]], str]
) -> None:
    import os
    import signal

    go_on, asked = threading.Event(), threading.Event()

    def answer() -> int:
        asked.set()
        go_on.wait(WAIT)
        return 200

    host = serve(answer)
    held = begin(sender[0], f"json://{host}/?cto=60&rto=60")
    assert asked.wait(WAIT)
    os.kill(sender[1][0], signal.SIGKILL)
    assert "the sending process ended with -9" in str(outcome_of(held).error)
    go_on.set()
    assert outcome_of(begin(sender[0], f"json://{host}/")).error is None


@pytest.mark.parametrize(
    ("kind", "secret", "said"), [("heartbeat", "", "LocationParseError"), ("webhook", "whsec_S3CRx", "it could not be sent: Error")]
)
def test_an_address_or_a_secret_that_breaks_a_library_is_an_outcome_and_costs_no_process(
    sender: tuple[Sender, list[int]], kind: Kind, secret: str, said: str
) -> None:
    broken = Receiver("here", SecretUrl("https://a..S3CRET/path"), kind=kind, secret=SecretUrl(secret))
    attempt = sender[0].beat(broken) if kind == "heartbeat" else sender[0].begin(broken, Message(1, "job", "failed", "title", "body", 0))
    error = outcome_of(attempt).error or ""
    assert error.startswith(said) and "S3CR" not in error
    assert sender[0]._process is not None and not sender[0]._process.spent
