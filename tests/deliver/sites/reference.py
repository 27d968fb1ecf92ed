"""The reference target over its own small server, by which the checks themselves are tried."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tests.deliver.contract.reference import PART, Store
from tests.deliver.contract.site import Contents, Site
from tests.deliver.proxy import Proxy, Request


class SITE(Site):
    kind = "reference"
    entry = "tests.deliver.contract.reference:Reference"
    part = PART
    secret = "a-secret-that-nobody-may-see"
    mutant = ""

    def start(self) -> None:
        self.store = Store()
        self.proxy = Proxy(self.store.server_address[1])
        self.proxy.__enter__()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self.store.shutdown()
        self.store.server_close()

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        return {"url": self.proxy.url, "mutant": self.mutant}

    def visible(self, run: str) -> Mapping[str, Contents]:
        with self.store.lock:
            values = dict(self.store.values)
        versions = {}
        for key, value in values.items():
            document = json.loads(value) if key.startswith("versions/") else {}
            if document.get("run") == run:
                versions[key.rsplit("/", 1)[1]] = {path: self._digest(values, *where) for path, where in document["files"].items()}
        return versions

    @staticmethod
    def _digest(values: Mapping[str, bytes], sha: str, size: int) -> str:
        count = max(1, -(-size // PART))
        return hashlib.sha256(b"".join(values.get(f"blobs/{sha}/{number}", b"") for number in range(count))).hexdigest()

    def _latest(self, run: str) -> str:
        return (
            f"latest/{run.replace('/', '-').replace(' ', '-') if self.mutant == 'joins runs' else hashlib.sha256(run.encode()).hexdigest()}"
        )

    def current(self, run: str) -> str | None:
        value = self.store.values.get(self._latest(run))
        return json.loads(value)["version"] if value else None

    def move_by_hand(self, run: str, version: str) -> None:
        step = int(version.rsplit("-", 2)[1])
        with self.store.lock:
            self.store.values[self._latest(run)] = json.dumps({"version": version, "step": step}).encode()

    def lay_foreign(self) -> None:
        with self.store.lock:
            self.store.values["versions/other/foreign-1-00000000"] = b'{"of": "somebody"}'

    def foreign_is_there(self) -> bool:
        return "versions/other/foreign-1-00000000" in self.store.values

    def stored(self) -> int:
        return sum(map(len, self.store.values.values()))

    def gives_contents(self, request: Request) -> bool:
        return request.method == "GET" and request.path.startswith("/blobs/")
