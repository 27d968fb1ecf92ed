"""A target over a small server of keys and values, right in every point that the checks look at, unless its option `mutant` names a
mistake.

It keeps parts by digest (`blobs/`), one document a version (`versions/`), and one a run for the name that people follow (`latest/`).
"""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.far_end import error_of, unreachable
from handlers.deliver.target import Setting
from handlers.deliver.version import SourceFile, Version

PART = 1 << 14


class Store(http.server.ThreadingHTTPServer):
    """Keys and values over HTTP with ETag, If-Match and If-None-Match; `values` can be read at any moment."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Cut connections are no news."""


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _say(self, status: int, body: bytes = b"", tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _serve(self) -> None:
        key, body = urllib.parse.unquote(self.path[1:]), self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if len(body) != int(self.headers.get("Content-Length", 0)):
            self.close_connection = True
            return None
        values = self.server.values
        with self.server.lock:
            old = values.get(key)
            tag = hashlib.sha256(old).hexdigest() if old is not None else None
            if key.startswith("?"):
                return self._say(200, json.dumps(sorted(name for name in values if name.startswith(key[1:]))).encode())
            if self.command in ("GET", "HEAD"):
                return self._say(404) if old is None else self._say(200, old, tag or "")
            if self.headers.get("If-None-Match") == "*" and old is not None:
                return self._say(412)
            if (wanted := self.headers.get("If-Match")) and wanted != tag:
                return self._say(412)
            if self.command == "DELETE":
                values.pop(key, None)
            else:
                values[key] = body
            return self._say(200)

    do_GET = do_HEAD = do_PUT = do_DELETE = _serve  # noqa: N815


class Reference:
    """The target."""

    def __init__(self, setting: Setting) -> None:
        self._url = urllib.parse.urlsplit(str(setting.options["url"]))
        self._mutant = setting.options.get("mutant")
        self._secret, self._resume = setting.secret, setting.resume

    def close(self) -> None:
        """It holds nothing."""

    def _ask(self, method: str, key: str, body: bytes = b"", expected: Sequence[int] = (200,), **headers: str) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port, timeout=60)
        try:
            connection.request(
                method, "/" + urllib.parse.quote(key, safe="/?"), body, {name.replace("_", "-"): value for name, value in headers.items()}
            )
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(f"{method} {key}", error, self._url.geturl()) from error
        finally:
            connection.close()
        if answer.status not in expected:
            words = self._secret if self._mutant == "leaks the secret" else ""
            if self._mutant == "tries again what is refused":
                raise Retryable(FaultCode.DELIVERY_FAR_END, method, str(answer.status), "wait", path=key)
            after = None if self._mutant == "does not wait as long as asked" else answer.getheader("Retry-After")
            raise error_of(answer.status, f"{method} {key}", words, self._url.geturl(), after)
        return answer.status, said, answer.getheader("ETag") or ""

    def _document(self, key: str) -> tuple[Any, str]:
        status, said, tag = self._ask("GET", key, expected=(200, 404))
        return (json.loads(said), tag) if status == 200 else (None, "")

    def _keys(self, prefix: str) -> list[str]:
        return list(json.loads(self._ask("GET", "?" + prefix)[1]))

    def look(self) -> None:
        """Ask for nothing in particular."""
        if self._mutant == "leaves something at a look":
            self._ask("PUT", "versions/look/x", b"{}")
        self._keys("latest/")

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Put its parts."""
        there = 0
        for number, start in enumerate(range(0, file.size, PART) or (0,)):
            part, key = file.part(start, PART), f"blobs/{file.sha256}/{number}"
            if self._mutant != "sends again what is there" and self._ask("HEAD", key, expected=(200, 404))[0] == 200:
                there += len(part)
                continue
            self._ask("PUT", key, part)
            sent(len(part))
        with file.open() as stream:
            while self._mutant != "trusts the source" and stream.read(PART):
                pass
        return there

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """Its parts as they are there."""
        for number, start in enumerate(range(0, file.size, PART) or (0,)):
            part = self._ask("GET", f"blobs/{file.sha256}/{number}")[1]
            yield file.part(start, PART) if self._mutant == "trusts the far end" else part

    def _safe(self, run: str) -> str:
        return run.replace("/", "-").replace(" ", "-") if self._mutant == "joins runs" else hashlib.sha256(run.encode()).hexdigest()

    def finish(self, version: Version, move: Move) -> Receipt:
        """One document, then the other."""
        files = {file.path: [file.sha256, file.size] for file in version.files}
        key = f"versions/{self._safe(version.run)}/{version.name}"
        document = {"run": version.run, "step": version.step, "export": version.export, "files": files}
        if self._mutant == "shows half":
            self._ask("PUT", key, json.dumps({**document, "files": dict(list(files.items())[:2])}).encode())
            self._ask("PUT", key, json.dumps(document).encode())
        if self._mutant == "moves first":
            self._move(version, move)
        self._ask("PUT", key, json.dumps(document).encode(), (200, 412), If_None_Match="*")
        why = self._move(version, move)
        return Receipt(version=version.name, place=f"{self._url.geturl()}/{key}", moved=not why, why_not_moved=why, usage=f"get {key}")

    def _move(self, version: Version, move: Move) -> str:
        key = f"latest/{self._safe(version.run)}"
        for _ in range(20):
            document, tag = self._document(key)
            if move == "keep":
                return "the target's rule leaves it as it is"
            if move == "move" and document and document["step"] > version.step and self._mutant != "moves always":
                return f"it stands for the later step {document['step']}"
            fence = {"If_Match": tag} if tag else {"If_None_Match": "*"}
            if self._mutant == "moves without a fence":
                fence = {}
            wanted = json.dumps({"version": version.name, "step": version.step}).encode()
            if self._ask("PUT", key, wanted, (200, 412), **fence)[0] == 200:
                return ""
        raise Permanent(FaultCode.DELIVERY_CONFLICT, "move the name", "others move it all the time", "try again")

    def _versions(self) -> list[tuple[str, Any]]:
        return [(key, self._document(key)[0]) for key in self._keys("versions/")]

    def list(self, run: str) -> Sequence[Listed]:
        """The documents."""
        rows = []
        for key, document in self._versions():
            if self._mutant == "lists what is foreign" and "run" not in document:
                document = {"run": run, "step": 0, "export": ""}
            if "run" not in document or (run and document["run"] != run):
                continue
            current = (self._document(f"latest/{self._safe(document['run'])}")[0] or {}).get("version")
            name = key.rsplit("/", 1)[1]
            rows.append(
                Listed(version=name, run=document["run"], step=document["step"], export=document["export"], current=name == current)
            )
        return sorted(rows, key=lambda row: row.step, reverse=self._mutant == "lists the newest first")

    def remove(self, version: str) -> None:
        """The document, then parts that no other needs."""
        listed = {row.version: row for row in self.list("")}
        if version not in listed and self._mutant != "removes what is foreign":
            return
        if version in listed and listed[version].current and self._mutant != "removes what is followed":
            raise Permanent(FaultCode.DELIVERY_CONFLICT, f"remove {version}", "the followed name stands for it", "move that first")
        documents = self._versions()
        for key in [key for key, _ in documents if key.endswith("/" + version)]:
            self._ask("DELETE", key)
        if self._mutant == "removes nothing of the contents":
            return
        needed = {
            sha for key, document in documents for sha, _ in document.get("files", {}).values()
            if not key.endswith("/" + version) and self._mutant != "removes shared contents"
        }  # fmt: skip
        for key in self._keys("blobs/"):
            if key.split("/")[1] not in needed:
                self._ask("DELETE", key)
