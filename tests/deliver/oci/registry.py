"""A small registry that holds clients to the OCI distribution specification, written from its text and sharing nothing with ckptd.

What it can be made to do: ask for Basic or for tokens that expire, hand blobs out at another address, take no chunks or large ones
alone, be full, forget uploads that are cut (as docker-registry does), know conditional writes of tags.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import secrets
import threading
import urllib.parse
from dataclasses import dataclass, field
from typing import Any

TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
NAME = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
USER, PASSWORD = "robot", "a-password-that-nobody-may-see"


@dataclass
class Repository:
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    uploads: dict[str, bytearray] = field(default_factory=dict)


@dataclass
class Manners:
    """How it behaves."""

    auth: str = ""
    """"basic" or "bearer"."""
    uses: int = 10**9
    """Of a token."""
    chunks: bool = True
    least_chunk: int = 0
    forgets_cut: bool = False
    room: int = 10**12
    deletes: bool = True
    conditional: bool = False
    blobs_at: str = ""
    """Address at which blobs are handed out: `host:port`."""
    page: int = 10**9
    catalog: bool = True


class Registry(http.server.ThreadingHTTPServer):
    """Listens on a port of its own."""

    daemon_threads = True

    def __init__(self, manners: Manners | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.manners, self.lock = manners or Manners(), threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, int] = {}
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and Authorization of each request."""
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Cut connections are no news."""

    def collect(self) -> None:
        """Let blobs and manifests go that nothing names, as a registry's own clean-up does."""
        with self.lock:
            for repository in self.repositories.values():
                needed = set()
                for _, body in repository.manifests.values():
                    document = json.loads(body)
                    needed |= {row["digest"] for row in (document["config"], *document["layers"])}
                repository.blobs = {digest: data for digest, data in repository.blobs.items() if digest in needed}

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Refusal(Exception):
    def __init__(self, status: int, code: str, **headers: str) -> None:
        super().__init__(code)
        self.status, self.code, self.headers = status, code, headers


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        self.at = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(self.at.query))
        self.server.asked.append((self.command, self.at.path, self.headers.get("Authorization", "")))
        self.read = 0
        try:
            self._route()
        except _Refusal as refusal:
            if self.command in ("PUT", "PATCH", "POST"):
                self._drain()
            body = json.dumps({"errors": [{"code": refusal.code, "message": refusal.code.lower().replace("_", " ")}]}).encode()
            self._say(refusal.status, body, **refusal.headers)
        except ConnectionError:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def length(self) -> int:
        if "Content-Length" not in self.headers:
            raise _Refusal(411, "SIZE_INVALID")
        return int(self.headers["Content-Length"])

    def _drain(self) -> None:
        left = int(self.headers.get("Content-Length", 0)) - self.read
        while left > 0 and (block := self.rfile.read(min(left, 1 << 16))):
            left -= len(block)

    def _body(self, into: bytearray) -> None:
        """Append the request's body as it comes."""
        while self.read < self.length:
            block = self.rfile.read1(min(self.length - self.read, 1 << 16))
            if not block:
                raise ConnectionError
            self.read += len(block)
            into += block

    def _check_access(self, scope: str) -> None:
        manners, shown = self.server.manners, self.headers.get("Authorization", "")
        if manners.auth == "basic" and shown != _basic():
            raise _Refusal(401, "UNAUTHORIZED", WWW_Authenticate='Basic realm="a registry"')
        if manners.auth == "bearer":
            with self.server.lock:
                token = shown.removeprefix("Bearer ")
                granted = self.server.tokens.get(token + " " + scope, 0)
                if granted <= 0:
                    realm = f"http://127.0.0.1:{self.server.port}/token"
                    challenge = f'Bearer realm="{realm}",service="a registry",scope="{scope}"'
                    raise _Refusal(401, "UNAUTHORIZED", WWW_Authenticate=challenge)
                self.server.tokens[token + " " + scope] = granted - 1

    def _route(self) -> None:
        path = self.at.path
        if path == "/token":
            return self._token()
        if path.startswith("/far-away/"):
            if self.headers.get("Authorization"):
                raise _Refusal(400, "CREDENTIALS_LEAKED")
            name, _, digest = path.removeprefix("/far-away/").rpartition("/")
            return self._say(200, self.server.repositories[name].blobs[digest])
        if path == "/v2/_catalog":
            self._check_access("registry:catalog:*")
            if not self.server.manners.catalog:
                raise _Refusal(404, "UNSUPPORTED")
            return self._say(200, json.dumps({"repositories": sorted(self.server.repositories)}).encode())
        match = re.fullmatch(r"/v2/(.+)/(blobs/uploads/[^/]*|blobs/[^/]+|manifests/[^/]+|tags/list)", path)
        if match is None:
            raise _Refusal(404, "NAME_UNKNOWN")
        name, what = match.group(1), urllib.parse.unquote(match.group(2))
        if not NAME.fullmatch(name):
            raise _Refusal(400, "NAME_INVALID")
        self._check_access(f"repository:{name}:{'pull' if self.command in ('GET', 'HEAD') else 'pull,push'}")
        with self.server.lock:
            writes = self.command not in ("GET", "HEAD", "DELETE")
            repository = self.server.repositories.get(name) or Repository()
            if writes:
                self.server.repositories[name] = repository
        if what.startswith("blobs/uploads/"):
            return self._upload(name, repository, what.removeprefix("blobs/uploads/"))
        if what.startswith("blobs/"):
            return self._blob(name, repository, what.removeprefix("blobs/"))
        if what.startswith("manifests/"):
            with self.server.lock:
                return self._manifest(name, repository, what.removeprefix("manifests/"))
        return self._tags(name, repository)

    def _token(self) -> None:
        if self.headers.get("Authorization") != _basic():
            raise _Refusal(401, "UNAUTHORIZED")
        token, scope = secrets.token_hex(20), self.query.get("scope", "")
        kind, name, actions = scope.split(":")
        with self.server.lock:
            wider = {"pull", "pull,push"} if "push" in actions else {actions}
            for allowed in wider:
                self.server.tokens[f"{token} {kind}:{name}:{allowed}"] = self.server.manners.uses
        self._say(200, json.dumps({"token": token, "expires_in": 60}).encode())

    def _upload(self, name: str, repository: Repository, upload: str) -> None:
        manners = self.server.manners
        if self.command == "POST" and not upload:
            if self.length:
                raise _Refusal(400, "BLOB_UPLOAD_INVALID")
            number = secrets.token_hex(8)
            repository.uploads[number] = bytearray()
            least = {"OCI_Chunk_Min_Length": str(manners.least_chunk)} if manners.least_chunk else {}
            return self._say(202, b"", Location=self._where(name, number, 0), Range="0-0", **least)
        data = repository.uploads.get(upload)
        if data is None:
            raise _Refusal(404, "BLOB_UPLOAD_UNKNOWN")
        if self.command == "DELETE":
            del repository.uploads[upload]
            return self._say(204)
        if self.command == "GET":
            return self._say(204, Location=self._where(name, upload, len(data)), Range=_range(data))
        if self.headers.get("Content-Type") != "application/octet-stream":
            raise _Refusal(415, "UNSUPPORTED")
        self._take(repository, upload, data)
        if self.command == "PATCH":
            return self._say(202, Location=self._where(name, upload, len(data)), Range=_range(data))
        digest = self.query.get("digest", "")
        if digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            del repository.uploads[upload]
            raise _Refusal(400, "DIGEST_INVALID")
        repository.blobs[digest] = bytes(repository.uploads.pop(upload))
        self._say(201, Location=f"/v2/{name}/blobs/{digest}", Docker_Content_Digest=digest)

    def _take(self, repository: Repository, upload: str, data: bytearray) -> None:
        manners, given = self.server.manners, self.headers.get("Content-Range")
        if self.command == "PATCH" and (not manners.chunks or given is None):
            raise _Refusal(405, "UNSUPPORTED")
        if given is not None:
            first, last = (int(part) for part in given.split("-"))
            if last - first + 1 != self.length:
                raise _Refusal(400, "SIZE_INVALID")
            if first != len(data):
                raise _Refusal(416, "RANGE_INVALID")
        elif data and self.length:
            raise _Refusal(416, "RANGE_INVALID")
        if self.command == "PATCH" and self.length < manners.least_chunk:
            raise _Refusal(400, "SIZE_INVALID")
        if sum(map(len, repository.blobs.values())) + len(data) + self.length > manners.room:
            raise _Refusal(403, "DENIED_QUOTA_EXCEEDED")
        try:
            self._body(data)
        except ConnectionError:
            if manners.forgets_cut:
                repository.uploads.pop(upload, None)
            raise

    def _where(self, name: str, upload: str, state: int) -> str:
        return f"/v2/{name}/blobs/uploads/{upload}?state={state}-{secrets.token_hex(3)}"

    def _blob(self, name: str, repository: Repository, digest: str) -> None:
        data = repository.blobs.get(digest)
        if data is None or self.command not in ("GET", "HEAD"):
            raise _Refusal(404, "BLOB_UNKNOWN")
        if self.command == "GET" and self.server.manners.blobs_at:
            return self._say(307, Location=f"http://{self.server.manners.blobs_at}/far-away/{name}/{digest}")
        self._say(200, data, Docker_Content_Digest=digest)

    def _manifest(self, name: str, repository: Repository, reference: str) -> None:
        digest = reference if ":" in reference else repository.tags.get(reference, "")
        if self.command == "PUT":
            return self._put_manifest(name, repository, reference)
        if digest not in repository.manifests:
            raise _Refusal(404, "MANIFEST_UNKNOWN")
        media, body = repository.manifests[digest]
        if self.command == "DELETE":
            if not self.server.manners.deletes or ":" not in reference:
                raise _Refusal(405, "UNSUPPORTED")
            del repository.manifests[digest]
            repository.tags = {tag: value for tag, value in repository.tags.items() if value != digest}
            return self._say(202)
        if media not in self.headers.get("Accept", ""):
            raise _Refusal(404, "MANIFEST_UNKNOWN")
        more = {"ETag": f'"{digest}"'} if self.server.manners.conditional else {}
        self._say(200, body, Content_Type=media, Docker_Content_Digest=digest, **more)

    def _put_manifest(self, name: str, repository: Repository, reference: str) -> None:
        if ":" not in reference and not TAG.fullmatch(reference):
            raise _Refusal(400, "TAG_INVALID")
        now = repository.tags.get(reference)
        if self.server.manners.conditional:
            wanted = self.headers.get("If-Match")
            if (wanted and wanted != f'"{now}"') or (self.headers.get("If-None-Match") == "*" and now):
                raise _Refusal(412, "PRECONDITION_FAILED")
        self._body(data := bytearray())
        document = json.loads(data)
        if document.get("mediaType") != self.headers.get("Content-Type") or document.get("schemaVersion") != 2:
            raise _Refusal(400, "MANIFEST_INVALID")
        for row in (document["config"], *document["layers"]):
            if len(repository.blobs.get(row["digest"], b"-" * (row["size"] + 1))) != row["size"] or "/" not in row["mediaType"]:
                raise _Refusal(404, "MANIFEST_BLOB_UNKNOWN")
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        repository.manifests[digest] = (document["mediaType"], bytes(data))
        if ":" not in reference:
            repository.tags[reference] = digest
        self._say(201, Location=f"/v2/{name}/manifests/{digest}", Docker_Content_Digest=digest)

    def _tags(self, name: str, repository: Repository) -> None:
        if name not in self.server.repositories:
            raise _Refusal(404, "NAME_UNKNOWN")
        count = min(int(self.query.get("n", 10**9)), self.server.manners.page)
        tags = [tag for tag in sorted(repository.tags) if tag > self.query.get("last", "")]
        more = {"Link": f'</v2/{name}/tags/list?n={count}&last={tags[count - 1]}>; rel="next"'} if len(tags) > count else {}
        self._say(200, json.dumps({"name": name, "tags": tags[:count]}).encode(), **more)


def _basic() -> str:
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def _range(data: bytearray) -> str:
    return f"0-{max(0, len(data) - 1)}"
