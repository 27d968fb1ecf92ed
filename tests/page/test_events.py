"""Server-sent events: a change is told, a quiet stream says that it lives, and the end of the server ends every stream at once."""

from __future__ import annotations

import contextlib
import gc
import http.client
import time
from collections.abc import Callable, Iterator

import pytest

from daemon.page import events
from daemon.page.access.tokens import COOKIE, session
from tests.page.conftest import TOKEN, Site, wait_until

Make = Callable[..., Site]


@contextlib.contextmanager
def stream(site: Site) -> Iterator[http.client.HTTPResponse]:
    """An open stream."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", "/events", headers={"Accept": "text/event-stream"})
    try:
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
        with contextlib.closing(answer):
            yield answer
    finally:
        connection.close()


def next_block(answer: http.client.HTTPResponse) -> str:
    """The next lines up to an empty one; "" at the end."""
    lines = []
    while line := answer.readline().decode().rstrip("\n"):
        lines.append(line)
    return "\n".join(lines)


def test_a_change_in_the_journal_is_told(make_site: Make) -> None:
    site = make_site(jobs=3)
    with stream(site) as answer:
        assert "event: begin" in next_block(answer)
        time.sleep(1.5)  # until its first look
        site.journal.controls.pause_all(True)
        assert "event: changed" in next_block(answer)


def test_a_quiet_stream_says_that_it_lives(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.2)
    with stream(make_site()) as answer:
        next_block(answer)
        assert next_block(answer).startswith(":")


def test_the_end_of_the_server_waits_for_no_stream(make_site: Make) -> None:
    site = make_site()
    with stream(site) as first, stream(site) as second:
        next_block(first)
        next_block(second)
        began = time.monotonic()
        site.page.stop()
        assert site.page._server is None and time.monotonic() - began < 3
        assert first.read() == second.read() == b""


def test_a_stream_ends_with_the_token_that_opened_it(make_site: Make) -> None:
    site = make_site(token=TOKEN)
    cookie = f"{COOKIE}={session(TOKEN)}"
    with site.open() as client:
        client.sendall(f"GET /events HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
        client.settimeout(10)  # less than to the next sign that it lives
        (site.folder / "token").write_text(f"{TOKEN}-changed")
        site.page.adopt(site.with_page(listen="127.0.0.1:0", token_file=site.folder / "token"))
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass
    wait_until(lambda: site.is_up)
    assert site.ask("/events", Cookie=cookie).status == 401


def test_there_are_not_more_streams_than_some(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 2)
    site = make_site()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            next_block(stack.enter_context(stream(site)))
        refused = site.ask("/events")
        assert refused.status == 503 and refused.headers["retry-after"]
    deadline = time.monotonic() + 30
    while True:  # those that have gone make room
        with contextlib.suppress(AssertionError), stream(site) as answer:
            assert "begin" in next_block(answer)
            return
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_stream_that_ends_leaves_no_task_behind(make_site: Make, caplog: pytest.LogCaptureFixture) -> None:
    site = make_site(jobs=3)
    for _ in range(3):
        with stream(site) as answer:  # its reader goes
            next_block(answer)
    time.sleep(1)
    gc.collect()
    with stream(site) as answer:  # the server ends
        next_block(answer)
        time.sleep(0.5)
        site.page.adopt(site.with_page(listen="127.0.0.1:0", hosts=("box.example.org",)))
        wait_until(lambda: site.is_up)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
