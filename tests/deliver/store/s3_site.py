"""S3 as moto's server speaks it, in an environment of its own; signatures are checked by botocore there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

from tests.deliver.contract.site import Contents, Site
from tests.deliver.proxy import Answer, Proxy, Request
from tests.deliver.sites.store import folder_of

STARTS = 60.0
PART = 1 << 15
SERVER = """
import os, sys
import moto.core.responses
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


class S3Site(Site):
    """A server of its own, with the bucket `models`."""

    kind = "store"
    entry = "handlers.deliver.store.target:Store"
    secret = "AWS_ACCESS_KEY_ID=AKIAEXAMPLE\nAWS_SECRET_ACCESS_KEY=the/secret+of+tests\n"
    part: ClassVar[int] = PART
    slack: ClassVar[int] = 40_000
    python: Path
    more: Mapping[str, Any] = {}

    def start(self) -> None:
        environment = {**os.environ, "S3_UPLOAD_PART_MIN_SIZE": "1024", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", self.python, "-W", "ignore", "-c", SERVER], env=environment, cwd=self.folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        end = time.monotonic() + STARTS
        while True:
            try:
                self.plain("PUT", "/models")
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
        self.proxy = Proxy(self.port)
        self.proxy.__enter__()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        return {"url": "s3://models/some/where", "endpoint": self.proxy.url, "part_bytes": PART, **self.more}

    def plain(self, method: str, path: str, data: bytes | None = None, **headers: str) -> bytes:
        """An answer past the proxy, without a signature."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers, method=method)
        request.add_header("Content-Type", "application/octet-stream")
        # S3 is told from other services by this header.
        request.add_header(
            "Authorization", "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            body: bytes = answer.read()
        return body

    def get(self, key: str) -> bytes | None:
        """An object below the prefix."""
        try:
            return self.plain("GET", f"/models/some/where/{urllib.parse.quote(key)}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return None

    def put(self, key: str, data: bytes) -> None:
        self.plain("PUT", f"/models/some/where/{urllib.parse.quote(key)}", data)

    def keys(self, prefix: str = "") -> dict[str, int]:
        """Sizes of objects below the prefix."""
        sizes: dict[str, int] = {}
        token = ""
        while True:
            more = f"&continuation-token={urllib.parse.quote(token)}" if token else ""
            root = ElementTree.fromstring(
                self.plain("GET", f"/models?list-type=2&prefix={urllib.parse.quote('some/where/' + prefix)}{more}")
            )
            for row in root.findall(".//{*}Contents"):
                sizes[str(row.findtext("{*}Key")).removeprefix("some/where/")] = int(str(row.findtext("{*}Size")))
            token = root.findtext("{*}NextContinuationToken") or ""
            if not token:
                return sizes

    def visible(self, run: str) -> Mapping[str, Contents]:
        """By the manifests: what one names must be there."""
        run, seen = folder_of(run), {}
        for key in self.keys(f"{run}/"):
            folder = key.removesuffix("/MANIFEST.json")
            if folder.count("/") != 1 or folder == key or "foreign" in folder:
                continue
            if (manifest := self.get(key)) is not None:
                there = {row["path"]: self.get(f"{folder}/{row['path']}") for row in json.loads(manifest)["files"]}
                seen[folder] = {path: "missing" if data is None else hashlib.sha256(data).hexdigest() for path, data in there.items()}
        return seen

    def current(self, run: str) -> str | None:
        body = self.get(f"{folder_of(run)}/latest.json")
        return f"{folder_of(run)}/{json.loads(body)['version']}" if body else None

    def move_by_hand(self, run: str, version: str) -> None:
        step = json.loads(self.get(f"{version}/MANIFEST.json") or b"{}")["step"]
        name = version.partition("/")[2]
        self.put(f"{folder_of(run)}/latest.json", json.dumps({"version": name, "run": run, "step": step, "path": f"{name}/"}).encode())

    def lay_foreign(self) -> None:
        self.put("run-a/foreign-1-00000000/model.onnx", b"a person's")
        self.put("run-a/foreign-1-00000000/MANIFEST.json", json.dumps({"run": "run-a", "step": 1, "files": []}).encode())

    def foreign_is_there(self) -> bool:
        return self.get("run-a/foreign-1-00000000/model.onnx") is not None

    def uploads(self) -> list[tuple[str, str]]:
        """Unfinished uploads, by key and number."""
        root = ElementTree.fromstring(self.plain("GET", "/models?uploads"))
        return [(str(row.findtext("{*}Key")), str(row.findtext("{*}UploadId"))) for row in root.findall(".//{*}Upload")]

    def leftovers(self) -> list[str]:
        """Unfinished uploads, and what says that a version is brought."""
        return [*(key for key, _ in self.uploads()), *(key for key in self.keys() if "/.begun/" in key)]

    def stored(self) -> int:
        return sum(self.keys().values()) + len(self.uploads())

    def refusal(self, code: int) -> Answer:
        names = {
            401: (401, "Unauthorized", "no"), 403: (403, "AccessDenied", "Access Denied"), 429: (429, "TooManyRequests", "slow down"),
            503: (503, "SlowDown", "Please reduce your request rate"), 507: (507, "XMinioStorageFull", "Storage backend is full"),
        }  # fmt: skip
        status, name, message = names.get(code, (code, "InternalError", "We encountered an internal error"))
        body = f'<?xml version="1.0"?><Error><Code>{name}</Code><Message>{message}</Message></Error>'
        return Answer(status, {"Content-Type": "application/xml"}, body.encode())

    def gives_contents(self, request: Request) -> bool:
        return request.method == "GET" and any(request.path.endswith(end) for end in (".safetensors", ".onnx", ".onnx_data"))
