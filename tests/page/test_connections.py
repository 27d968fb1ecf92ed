"""Connections that send slowly, send nothing, or are too many: the page answers others all the same, and the daemon keeps its handles."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import time
from collections.abc import Callable

import pytest

from daemon.page import connections
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


def test_a_connection_serves_several_requests(make_site: Make) -> None:
    site = make_site()
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=20)
    for _ in range(3):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        first = connection.sock
        assert first is not None
    connection.close()
