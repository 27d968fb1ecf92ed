"""Nobody but the configured server is spoken to, its answers are said as they are, and files are for who may read exports."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from daemon.config.notify import NotifySettings
from daemon.journal.journal import Journal
from daemon.publishing.telling.notifier import Notifier
from daemon.publishing.telling.sender import Sender
from daemon.system.filesystems.private import private_files
from tests.notify.conftest import deliver
from tests.trackers.conftest import Exports, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Serve = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes a server that answers all with a status; gives its address, and what it was asked."""
    servers: list[ThreadingHTTPServer] = []

    def make(status: int, **headers: str) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                asked.append(f"{self.command} {self.path}")
                self.send_response(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self.answer
                raise AttributeError(name)

            def log_message(self, *_: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}", asked

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def tell(journal: Journal, library: Path) -> Iterator[Callable[..., None]]:
    """Delivers what waits to targets, by a sending process that is started now as the daemon starts it."""
    sender = Sender()

    def deliver_to(exports: Exports, *tables: dict[str, Any]) -> None:
        targets: Any = [{"name": f"t{number}", "python": str(library), **table} for number, table in enumerate(tables)]
        notifier = Notifier(NotifySettings(targets=targets).with_file(), journal, begin=sender.begin)
        notifier.know_targets()
        exports.ends(4)
        with private_files():
            deliver(notifier)

    yield deliver_to
    sender.end()


def test_libraries_ask_nobody_else_and_keep_nothing_in_the_home(
    exports: Exports, tell: Callable[..., None], serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, asked = serve(502)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "home"))
    tell(
        exports, {"tensorboard": f"{tmp_path}/events"}, {"mlflow": f"sqlite:///{tmp_path}/store.db", "model": "m", "alias": "a"},
        {"wandb": "p", "offline": True, "folder": f"{tmp_path}/files"},
    )  # fmt: skip
    assert [row[0] for row in exports.waiting()] == ["delivered"] * 3, exports.waiting()
    assert asked == [] and [*home.iterdir()] == []


def test_files_have_the_mode_of_exports_and_those_of_a_store_lie_beside_it(
    exports: Exports, tell: Callable[..., None], tmp_path: Path, library: Path
) -> None:
    before = os.umask(0o022)
    try:
        tell(exports, {"tensorboard": f"{tmp_path}/events"}, {"mlflow": f"sqlite:///{tmp_path}/mlflow.db", "experiment": "beside"})
    finally:
        os.umask(before)
    assert [row[0] for row in exports.waiting()] == ["delivered"] * 2, exports.waiting()
    (file, *_) = (tmp_path / "events").rglob("events.out.*")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644 and stat.S_IMODE(file.parent.stat().st_mode) == 0o755
    assert len([*(tmp_path / "mlruns").rglob("report.json")]) == 1
    (run,) = read(library, "mlflow", f"sqlite:///{tmp_path}/mlflow.db", "none")["runs"]
    assert run["files"] == {"step-4": ["report.html", "report.json"]}


def test_a_redirect_is_not_followed_and_an_answer_is_said_by_its_status(exports: Exports, tell: Callable[..., None], serve: Serve) -> None:
    other, asked = serve(200)
    statuses = {307: "it refers to another address, where nothing is sent", 500: "answers with 500", 401: "key_file has no key"}
    servers = [serve(status, Location=f"{other}/elsewhere")[0] for status in statuses]
    tell(exports, *({"mlflow": server} for server in servers))
    assert asked == []
    said = [error or "" for _, _, error in exports.waiting()]
    assert all(any(part in error for error in said) for part in statuses.values()), said
