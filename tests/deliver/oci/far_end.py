"""What the sites of registries share: a repository a run behind a proxy, read by plain HTTP past it."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from tests.deliver.contract.site import Contents, Site
from tests.deliver.oci import reading
from tests.deliver.proxy import Answer, Proxy, Request

CHUNK = 1 << 15
TAG = re.compile(r".+-\d+-[0-9a-f]{8}")


class RegistrySite(Site):
    """A registry at 127.0.0.1."""

    kind = "oci"
    entry = "handlers.deliver.oci.target:OciTarget"
    part = CHUNK
    slack = 40_000
    """Manifests and configurations: some 3 kB, written under three tags."""
    port: int

    def _front(self) -> None:
        """Put the proxy before the registry."""
        self.proxy = Proxy(self.port)
        self.proxy.__enter__()

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        return {"repository": f"{self.proxy.url.removeprefix('http://')}/ml/{{run}}", "plain_http": True, "chunk_bytes": CHUNK}

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @staticmethod
    def name(run: str) -> str:
        if len(run) <= 100 and re.fullmatch(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*", run):
            return f"ml/{run}"
        plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:80] or "run"
        return f"ml/{plain}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"

    def visible(self, run: str) -> Mapping[str, Contents]:
        name, seen = self.name(run), {}
        for tag in reading.tags(self.base, name):
            if TAG.fullmatch(tag) and (document := reading.manifest(self.base, name, tag)) and "foreign" not in tag:
                seen[f"{name}:{tag}"] = reading.contents(self.base, name, document)
        return seen

    def current(self, run: str) -> str | None:
        document = reading.manifest(self.base, self.name(run), "latest")
        return f"{self.name(run)}:{document['annotations']['org.opencontainers.image.version']}" if document else None

    def _write(self, name: str, tag: str, body: bytes) -> None:
        """Write a manifest as a person's tool does."""
        request = urllib.request.Request(f"{self.base}/v2/{name}/manifests/{tag}", data=body, method="PUT")
        request.add_header("Content-Type", json.loads(body)["mediaType"])
        with urllib.request.urlopen(request, timeout=60):
            pass

    def _blob(self, name: str, data: bytes) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        begin = urllib.request.Request(f"{self.base}/v2/{name}/blobs/uploads/", data=b"", method="POST")
        with urllib.request.urlopen(begin, timeout=60) as answer:
            url = urllib.parse.urljoin(self.base, answer.headers["Location"])
        put = urllib.request.Request(f"{url}&digest={digest}", data=data, method="PUT")
        put.add_header("Content-Type", "application/octet-stream")
        with urllib.request.urlopen(put, timeout=60):
            return {"digest": digest, "size": len(data), "mediaType": "application/octet-stream"}

    def move_by_hand(self, run: str, version: str) -> None:
        name, _, tag = version.partition(":")
        body = reading.get(f"{self.base}/v2/{name}/manifests/{tag}")
        assert body
        self._write(name, "latest", body)

    def lay_foreign(self) -> None:
        row = self._blob("ml/run-a", b"{}")
        document = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": row, "layers": [row]}
        self._write("ml/run-a", "foreign-1-00000000", json.dumps(document).encode())

    def foreign_is_there(self) -> bool:
        return reading.manifest(self.base, "ml/run-a", "foreign-1-00000000") is not None

    def refusal(self, code: int) -> Answer:
        errors = {
            401: (401, "UNAUTHORIZED", "authentication required"), 403: (403, "DENIED", "requested access to the resource is denied"),
            429: (429, "TOOMANYREQUESTS", "too many requests"), 507: (500, "UNKNOWN", "write /var/lib/registry: no space left on device"),
        }  # fmt: skip
        status, name, message = errors.get(code, (code, "UNKNOWN", "unknown error"))
        return Answer(status, {"Content-Type": "application/json"}, json.dumps({"errors": [{"code": name, "message": message}]}).encode())

    def gives_contents(self, request: Request) -> bool:
        return request.method == "GET" and "/blobs/sha256:" in request.path
