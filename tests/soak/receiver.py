"""A receiver of notifications with a secret in its URL, which must stand nowhere but in the file that the configuration names."""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Receiver:
    """A server on this box that takes what it is sent; within `with` it serves."""

    secret = "CANARY7f3a9c"

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                receiver.count += 1
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.urls_file = folder / "urls"
        self.urls_file.touch(0o600)
        self.urls_file.write_text(f"json://person:{self.secret}@127.0.0.1:{self._server.server_port}/\n")

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def leaks(self) -> list[Path]:
        """Files below the folder in which the secret stands, but for the one that holds it."""
        files = [Path(at) / name for at, _, names in os.walk(self.folder) for name in names]
        plain = [path for path in files if path.is_file() and not path.is_symlink() and path != self.urls_file]
        return [path for path in plain if self.secret.encode() in path.read_bytes()]
