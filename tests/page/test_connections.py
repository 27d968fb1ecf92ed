"""Connections that send slowly, send nothing, or are too many: the page answers others all the same, and the daemon keeps its handles."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from daemon.config.places.paths import prepare
from daemon.page.access import connections
from tests.page.conftest import Site, wait_until

Make = Callable[..., Site]


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def drip(client: socket.socket, text: bytes, pause: float = 0.05) -> float:
    """Send a byte at a time, until the server has had enough; gives the seconds."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        for number in range(100_000):
            client.sendall(text[number % len(text) :][:1])
            time.sleep(pause)
            if is_closed(client):
                break
    return time.monotonic() - began


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        client.setblocking(True)


@pytest.mark.parametrize(
    ("begin", "then"),
    [
        (b"", b"GET / HTTP/1.1\r\nX-A: " + b"a" * 10_000),
        (b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n", b"a"),
        (b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nX-A: " + b"a" * 10_000),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000\r\n\r\n", b"a"),
    ],
    ids=["head", "body", "second head", "body that nobody wants"],
)
def test_a_request_that_never_ends_is_not_waited_for(make_site: Make, monkeypatch: pytest.MonkeyPatch, begin: bytes, then: bytes) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    site = make_site()
    with site.open() as client:
        client.sendall(begin)
        if begin:
            time.sleep(0.2)
        assert drip(client, then) < 30
    assert site.ask("/api/v1/status").status == 200


def test_a_connection_that_says_nothing_is_closed(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    with make_site().open() as client:
        wait_until(lambda: is_closed(client))


def test_a_thousand_open_connections_take_a_bounded_number_of_handles_and_the_page_still_answers(make_site: Make) -> None:
    site = make_site()
    before, clients = handles(), list[socket.socket]()
    try:
        for number in range(1000):
            clients.append(site.open())
            if number % 100 == 99:
                clients[-1].sendall(b"GET / HTTP/1.1\r\n")
                assert site.ask("/api/v1/status").status == 200
        assert handles() - before <= 1000 + connections.MOST_CONNECTIONS + connections.BACKLOG
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: handles() <= before + 5)


def test_clients_that_read_nothing_take_no_more_than_their_connection(make_site: Make) -> None:
    site = make_site(jobs=200)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(site.open())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /api/v1/jobs?limit=200 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
        assert site.ask("/api/v1/status").status == 200


def test_who_leaves_in_the_middle_of_a_request_is_no_error_of_the_page(make_site: Make) -> None:
    site = make_site()
    with capture_logs() as lines:
        for body in (b"Content-Length: 10\r\n\r\na", b"Transfer-Encoding: chunked\r\n\r\n5\r\na"):
            with site.open() as client:
                client.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n" + body)
        assert site.ask("/api/v1/status").status == 200
        time.sleep(0.5)
    assert lines == []


def test_a_connection_serves_several_requests(make_site: Make) -> None:
    site = make_site()
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    for _ in range(3):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        first = connection.sock
        assert first is not None
    connection.close()


def test_connections_leave_the_daemon_its_share_of_few_handles(tmp_path: Path) -> None:
    state = prepare(tmp_path / "state", tmp_path / "out").state
    command = [sys.executable, "-m", "tests.page.screens.serving", str(state), str(tmp_path / "out"), "0"]
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", limited, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline().rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(20):  # streams, which are not idle
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
                client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(100)
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(5):
                asking = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                asking.request("GET", "/api/v1/runs")
                assert asking.getresponse().status == 200
                asking.close()
            assert len(os.listdir(f"/proc/{process.pid}/fd")) <= 48
    finally:
        process.kill()
        said = process.communicate()[0]
    assert said == ""


def test_that_nothing_can_be_accepted_is_said_once_and_goes_by(make_site: Make, caplog: pytest.LogCaptureFixture) -> None:
    site = make_site()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(capture_logs())
        clients = [stack.enter_context(socket.socket()) for _ in range(50)]
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                stack.callback(os.close, os.dup(clients[0].fileno()))
        for client in clients:
            client.connect(("127.0.0.1", site.port))
        time.sleep(2.5)  # it tries again each second
    assert [line["event"] for line in lines] == ["the page could accept no connection, and goes on trying"]
    assert [record for record in caplog.records if record.name == "asyncio"] == []
    wait_until(lambda: site.is_up)
