"""A package index on this box that counts what is asked of it, breaks connections, and can be made to wait."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote


@dataclass
class Index:
    """The wheels of a folder, served as an index."""

    folder: Path
    port: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    """File → how often it was asked for."""
    breaking: Counter[str] = field(default_factory=Counter)
    """Distribution → how many more times its file is broken off in the middle."""
    waiting: set[str] = field(default_factory=set)
    """Distributions whose file does not come after its first half, until the client goes."""
    arrived: threading.Event = field(default_factory=threading.Event)
    """Somebody waits for one of those."""
    forgetful: bool = True
    """Nothing that is said with a file allows a client to keep it, as with the simplest servers."""

    @property
    def url(self) -> str:
        """For `index-url`."""
        return f"http://127.0.0.1:{self.port}/simple"

    def named(self, distribution: str) -> list[Path]:
        """The wheels of a distribution."""
        return [path for path in sorted(self.folder.glob("*.whl")) if normal(path.name.split("-")[0]) == distribution]

    def asked_of(self, distribution: str) -> int:
        """How often files of a distribution were asked for."""
        return sum(self.asked[path.name] for path in self.named(normal(distribution)))


def normal(name: str) -> str:
    """A distribution's name as an index has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@contextmanager
def served(folder: Path) -> Iterator[Index]:
    """An index of the wheels in `folder`, while the context lasts."""
    index = Index(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, name = unquote(self.path).strip("/").partition("/")
            if name.endswith(".metadata"):
                return self._answer(metadata(folder / name.removesuffix(".metadata")), "text/plain")
            found = index.named(name) if kind == "simple" else [path for path in folder.glob("*.whl") if path.name == name]
            if not found:
                return self.send_error(404)
            if kind == "simple":
                return self._answer(page(found).encode(), "text/html")
            index.asked[name] += 1
            self._file(found[0].read_bytes(), normal(name.split("-")[0]))

        def _file(self, body: bytes, distribution: str) -> None:
            if distribution in index.waiting:
                self._answer(body, "application/zip", len(body) // 2)
                index.arrived.set()
                self.rfile.read(1)  # nothing more comes until the client goes
            elif index.breaking[distribution] > 0:
                index.breaking[distribution] -= 1
                self._answer(body, "application/zip", len(body) // 2)
            else:
                self._answer(body, "application/zip")

        def _answer(self, body: bytes, kind: str, most: int | None = None) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            if not index.forgetful and kind != "text/html":
                self.send_header("cache-control", "max-age=365000000, immutable, public")
            self.end_headers()
            self.wfile.write(body[:most])
            self.wfile.flush()
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that goes in the middle is what is tried."""

    with Server(("127.0.0.1", 0), Handler) as server:
        index.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()


def page(wheels: list[Path]) -> str:
    """The page of a distribution."""
    told = 'data-core-metadata="true" data-dist-info-metadata="true"'
    links = [f'<a href="/files/{path.name}#sha256={digest(path)}" {told}>{path.name}</a>' for path in wheels]
    return f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>"


def metadata(wheel: Path) -> bytes:
    """What a wheel says of itself, which an index gives by itself too."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))


def digest(path: Path) -> str:
    """As an index says it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
