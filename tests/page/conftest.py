"""A page as the daemon serves it, on a journal of its own, and clients that speak HTTP to it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from daemon.config.page import PageSettings
from daemon.config.places.paths import prepare
from daemon.config.settings import Settings
from daemon.journal.journal import Journal
from daemon.operating.monitoring.live import LiveFile, write_live
from daemon.operating.outward import Serving
from daemon.page.service import PageService
from tests.page.filled import fill

TOKEN = "0123456789abcdef-of-the-tests"


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body."""
        return json.loads(self.body)


class Site:
    """A page that serves a state directory."""

    def __init__(self, folder: Path, *, token: str = "", jobs: int = 0, waiting: int = 0, **page: Any) -> None:
        self.folder, self.changed = folder, 0
        values: dict[str, Any] = {"listen": "127.0.0.1:0", **page}
        if token:
            (folder / "token").write_text(token)
            values["token_file"] = folder / "token"
        self.settings = Settings.model_validate({
            "state": {"directory": folder / "state"}, "output": {"directory": folder / "out"}, "limits": {"disk_reserve": 0},
        })  # fmt: skip
        self.settings = self.with_page(**values)
        paths = prepare(folder / "state", folder / "out")
        if jobs:
            fill(paths.state, paths.output, jobs, waiting=waiting)
        self.journal = Journal(paths.journal)
        self.page = PageService(Serving(self.settings, paths.state, self.journal, _figures, self._note, lambda: None))

    def with_page(self, **values: Any) -> Settings:
        """The settings with another `[page]`. Buttons without a token are served too, as on a socket: most questions need no other."""
        page = PageSettings(**values)
        is_open = page.control and page.token_file is None
        return self.settings.model_copy(update={"page": page if is_open else page.with_tokens()})

    def _note(self) -> None:
        self.changed += 1

    def start(self) -> None:
        """Serve."""
        self.page.adopt(self.settings)
        wait_until(lambda: self.is_up)

    @property
    def is_up(self) -> bool:
        """Whether it listens."""
        state = self.page.state()
        return state is not None and state.problem is None and state.address.startswith("http") and self._answers()

    def _answers(self) -> bool:
        try:
            return self.ask("/healthz").status in (200, 503)
        except OSError:
            return False

    @property
    def port(self) -> int:
        """Where it listens."""
        state = self.page.state()
        assert state is not None
        return int(state.address.rstrip("/").rpartition(":")[2])

    @property
    def origin(self) -> str:
        """What a browser calls it."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, method: str = "GET", body: str | bytes | None = None, **headers: str) -> Answer:
        """One request on a connection of its own; `_` in the name of a header stands for `-`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def known(self, path: str, method: str = "GET", body: str | bytes | None = None, **headers: str) -> Answer:
        """The same with the token."""
        return self.ask(path, method, body, Authorization=f"Bearer {TOKEN}", **headers)

    def open(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def stop(self) -> None:
        """End it."""
        self.page.stop()
        self.journal.close()


def _figures(accept: str) -> tuple[bytes, str]:
    return f"# {accept}\n".encode(), "text/plain; version=0.0.4"


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait for a condition; fails when it does not come true in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Gives what starts a page; all are ended."""
    sites: list[Site] = []

    def make(**values: Any) -> Site:
        folder = tmp_path / str(len(sites))
        folder.mkdir()
        site = Site(folder, **values)
        sites.append(site)
        site.start()
        return site

    yield make
    for site in sites:
        site.stop()


def say_alive(site: Site, **values: Any) -> None:
    """Write the live file as the daemon of this process does."""
    import os

    write_live(site.folder / "state" / "live.json", LiveFile(pid=os.getpid(), clock=time.monotonic(), **values))
