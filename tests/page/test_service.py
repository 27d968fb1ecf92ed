"""The page beside the daemon: whatever happens to it, the daemon goes on and says so."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.page import server
from daemon.page import service as page_service
from tests.page.conftest import Site, wait_until
from tests.ports import free_port
from tests.service import Service

Make = Callable[..., Site]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Service]:
    """A daemon's configuration in a folder; it is ended."""
    service = Service(tmp_path)
    yield service
    if service.process is not None and service.process.poll() is None:
        service.kill()


def get(port: int, path: str = "/healthz") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def page_of(service: Service) -> dict[str, str | None]:
    return service.status()["daemon"]["page"] or {}


def problem_of(site: Site) -> str:
    state = site.page.state()
    return (state.problem or "") if state is not None else ""


def configure(service: Service, text: str) -> None:
    before = service.config.read_text().partition("[page]")[0]
    service.config.write_text(f"{before}[page]\n{text}")


def test_a_daemon_serves_its_page_and_a_stop_waits_for_no_open_stream(daemon: Service) -> None:
    port = free_port()
    configure(daemon, f'listen = "127.0.0.1:{port}"\n')
    daemon.start()
    wait_until(lambda: get(port) == 200 == get(port, "/readyz"))
    assert page_of(daemon) == {"address": f"http://127.0.0.1:{port}/", "problem": None}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/events")
    stream = connection.getresponse()
    stream.readline()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(20) == 0
    with contextlib.closing(connection), contextlib.closing(stream):
        stream.read()
    assert get(port) == 0 and page_of(daemon) == {}


def test_a_port_that_is_taken_is_said_and_tried_again_and_a_reload_takes_another(daemon: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        configure(daemon, f'listen = "127.0.0.1:{port}"\n')
        daemon.start()
        wait_until(lambda: "another program listens there" in (page_of(daemon).get("problem") or ""))
        value = daemon.status()["daemon"]
        assert value["running"] and value["healthy"] and value["verdict"] == "healthy"
    other = free_port()
    configure(daemon, f'listen = "127.0.0.1:{other}"\n')
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: get(other) == 200)
    wait_until(lambda: page_of(daemon).get("problem") is None)
    configure(daemon, 'listen = ""\n')
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: get(other) == 0)
    wait_until(lambda: page_of(daemon) == {})


def test_a_thread_that_dies_is_begun_again_and_one_that_dies_always_is_left_for_a_while(
    make_site: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    listener, deaths = page_service._listener, 0

    def die(address: object) -> socket.socket:
        nonlocal deaths
        deaths += 1
        raise MemoryError("no memory for the page")

    monkeypatch.setattr(page_service, "_listener", die)
    monkeypatch.setattr(page_service, "REST_SECONDS", 0.5)
    assert site.page._server is not None
    site.page._server.close()  # as if it had ended by itself
    site.page.look()
    site.page.adopt(site.with_page(listen="127.0.0.1:0", control=True))
    wait_until(lambda: site.page._thread is not None and site.page._thread.given_up)
    site.page.look()
    state, death = site.page.state(), site.page.death()
    assert state is not None and "died again and again" in (state.problem or "") and "no memory for the page" in (state.problem or "")
    assert death is not None and death.thread == "page" and deaths >= 5
    monkeypatch.setattr(page_service, "_listener", listener)
    time.sleep(0.6)
    site.page.look()
    wait_until(lambda: site.is_up)


def test_a_server_that_ends_by_itself_is_begun_again(make_site: Make) -> None:
    site = make_site()
    before = site.page._server
    assert before is not None
    before.close()
    wait_until(lambda: site.page._server is not None and site.page._server is not before and site.is_up)


def test_connections_of_a_server_that_died_are_closed(make_site: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    site, dies, tick = make_site(), threading.Event(), server._Uvicorn.on_tick

    async def die(self: server._Uvicorn, counter: int) -> bool:
        if dies.is_set():
            dies.clear()
            raise MemoryError("no memory for the page")
        return await tick(self, counter)

    monkeypatch.setattr(server._Uvicorn, "on_tick", die)
    gc.disable()  # which would close them some time
    try:
        with site.open() as streams, site.open() as kept, site.open() as new:
            streams.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert streams.recv(100) and kept.recv(1 << 16)
            dies.set()
            for client in (streams, kept, new):
                with contextlib.suppress(ConnectionResetError):
                    while client.recv(1 << 16):
                        pass
    finally:
        gc.enable()
    site.page.look()
    wait_until(lambda: site.is_up)


def test_what_the_page_needs_is_imported_only_where_it_is_on(tmp_path: Path) -> None:
    code = (
        "import sys, json; from daemon.operating.service import serve; from daemon.page.service import PageService;"
        "print(json.dumps([name for name in ('starlette', 'uvicorn', 'h11', 'anyio', 'jinja2', 'asyncio') if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert not {"starlette", "uvicorn", "h11", "anyio", "jinja2"} & set(json.loads(answer.stdout))


def test_a_socket_serves_as_a_port_does_and_one_that_a_dead_daemon_left_is_replaced(
    make_site: Make, request: pytest.FixtureRequest
) -> None:
    folder = tempfile.mkdtemp(dir="/tmp")  # the path of a socket is short
    request.addfinalizer(lambda: shutil.rmtree(folder))
    path = Path(folder, "page.sock")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    site = make_site()
    site.page.adopt(site.with_page(listen=f"unix:{path}"))

    def ask() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            try:
                client.connect(str(path))
            except OSError:
                return b""
            client.sendall(b"GET /api/v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return client.recv(100)

    wait_until(lambda: ask().startswith(b"HTTP/1.1 200"))
    assert path.stat().st_mode & 0o777 == 0o660


def test_a_file_where_the_socket_should_be_is_kept_and_named(make_site: Make, request: pytest.FixtureRequest) -> None:
    folder = tempfile.mkdtemp(dir="/tmp")
    request.addfinalizer(lambda: shutil.rmtree(folder))
    path = Path(folder, "notes")
    path.write_text("of a person")
    site = make_site()
    site.page.adopt(site.with_page(listen=f"unix:{path}"))
    wait_until(lambda: "a file that is no socket is there" in problem_of(site))
    assert path.read_text() == "of a person"


def test_a_socket_whose_program_takes_no_connection_is_not_waited_for(make_site: Make, request: pytest.FixtureRequest) -> None:
    folder = tempfile.mkdtemp(dir="/tmp")
    request.addfinalizer(lambda: shutil.rmtree(folder))
    path = Path(folder, "page.sock")
    with contextlib.ExitStack() as stack:
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:  # until its queue is full
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(str(path))
        site = make_site()
        site.page.adopt(site.with_page(listen=f"unix:{path}"))
        wait_until(lambda: "another program listens there" in problem_of(site))
    assert path.is_socket()
