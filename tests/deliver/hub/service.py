"""A Hub for tests: speaks what huggingface_hub's own client speaks, over HTTP, on a port of its own.

Large objects go to another origin (`localhost` for `127.0.0.1`) with a signature in the address, where a token is refused, as at the Hub's
store. Names of the interface and answers are those of the client's source; `test_stock_client.py` holds the two together.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.deliver.hub.far_end.answers import Server
from tests.deliver.hub.far_end.objects import Objects
from tests.deliver.hub.far_end.repositories import Repositories
from tests.deliver.hub.far_end.store import Repo, Store

TOKEN = "hf_" + "a1B2" * 9


class Service:
    """In a `with`."""

    def __init__(self, folder: Path, chunk: int = 1 << 20, page: int = 50) -> None:
        folder.mkdir(exist_ok=True)
        self.store = Store(folder, chunk)
        self.tokens = {TOKEN}
        self.page = page
        self.signature = secrets.token_hex(8)
        self.fails_to_verify = 0
        """So many questions whether an object came whole are answered no."""
        self.before_commit: Callable[[Repo, str], None] | None = None
        """Called before each commit to a branch."""
        self._server = Server(("127.0.0.1", 0), _Handler)
        self._server.service = self

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


_NAME = r"([\w.-]+/[\w.%-]+)"
ROUTES = [
    (r"/api/repos/create", "POST", "create"), (r"/api/whoami-v2", "GET", "whoami"), (r"/api/validate-yaml", "POST", "yaml"),
    (r"/api/models", "GET", "models"), (rf"/api/models/{_NAME}", "GET", "info"), (rf"/api/models/{_NAME}/revision/([^/]+)", "GET", "info"),
    (rf"/api/models/{_NAME}/refs", "GET", "refs"), (rf"/api/models/{_NAME}/commits/([^/]+)", "GET", "commits"),
    (rf"/api/models/{_NAME}/tree/([^/]+)", "GET", "tree"), (rf"/api/models/{_NAME}/paths-info/([^/]+)", "POST", "paths_info"),
    (rf"/api/models/{_NAME}/preupload/([^/]+)", "POST", "preupload"), (rf"/api/models/{_NAME}/commit/([^/]+)", "POST", "commit"),
    (rf"/api/models/{_NAME}/branch/([^/]+)", "POST", "branch"), (rf"/api/models/{_NAME}/branch/([^/]+)", "DELETE", "delete_branch"),
    (rf"/api/models/{_NAME}/tag/([^/]+)", "POST", "tag"), (rf"/api/models/{_NAME}/tag/([^/]+)", "DELETE", "delete_tag"),
    (rf"/{_NAME}\.git/info/lfs/objects/batch", "POST", "batch"), (rf"/{_NAME}\.git/info/lfs/objects/verify", "POST", "verify"),
    (rf"/{_NAME}/resolve/([^/]+)/(.+)", "GET|HEAD", "resolve"),
    (r"/store/(\w+)", "PUT", "store_whole"), (r"/store/(\w+)/(\d+)", "PUT", "store_part"),
    (r"/api/complete_multipart", "POST", "store_complete"), (r"/cdn/(\w+)", "GET|HEAD", "store_read"),
]  # fmt: skip


class _Handler(Repositories, Objects):
    routes = ROUTES
