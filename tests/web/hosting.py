"""A hosting as people have it: a folder to which versions were really delivered, a web server that lets caches keep it, and a CDN."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deliver import exports
from tests.deliver.contract.bench import Bench
from tests.deliver.exports import Export
from tests.deliver.proxy import Proxy
from tests.deliver.sites.store import SITE

FOREVER = "public, max-age=31536000, immutable"


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allowed = "*"
    """Which pages may read it, "" for those of its own alone."""
    latest_for = "public, max-age=31536000"
    """What it says of latest.json: by that no browser would ask again by itself."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""

    def send_head(self) -> Any:
        """Never a 304 by the times of files, which one second makes alike."""
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def end_headers(self) -> None:
        if self.server.allowed:
            self.send_header("Access-Control-Allow-Origin", self.server.allowed)
        self.send_header("Cache-Control", self.server.latest_for if "latest.json" in self.path else FOREVER)
        super().end_headers()


class Hosting:
    """A folder to which versions are delivered, and its web server; `cdn` is a proxy before it."""

    def __init__(self, folder: Path) -> None:
        (far := folder / "far").mkdir(parents=True)
        self._site = SITE(far)
        self._site.start()
        self._bench = Bench(self._site, folder)
        self._folder = folder
        self.server = _Server(("127.0.0.1", 0), functools.partial(_Handler, directory=str(self._site.base)))
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.cdn = Proxy(self.server.server_port)

    @property
    def base(self) -> Path:
        """Where the run's versions lie."""
        return self._site.base / "run-a"

    @property
    def url(self) -> str:
        return f"{self.cdn.url}/run-a/"

    def deliver(self, step: int, folders: dict[str, Path], **order: Any) -> str:
        """Deliver published folders as one export; the version's name."""
        files = {
            f"{name}/{path.relative_to(folder)}": path.read_bytes()
            for name, folder in folders.items() for path in sorted(folder.rglob("*")) if path.is_file()
        }  # fmt: skip
        export: Export = exports.make(self._folder / f"export-{step}", step=step, files=files)
        receipt = self._bench.deliver(export, **order).receipt
        return receipt.version.partition("/")[2]


@contextmanager
def hosting(folder: Path) -> Iterator[Hosting]:
    """A hosting of nothing yet."""
    made = Hosting(folder)
    with made.cdn:
        try:
            yield made
        finally:
            made.server.shutdown()
            made.server.server_close()
