"""Contents of the Hub of the tests: large objects come and go by another origin, with a signature in the address."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from typing import Any

from tests.deliver.hub.far_end.answers import Answers
from tests.deliver.hub.far_end.store import Refused, Repo, Upload

LFS = "application/vnd.git-lfs+json"


class Objects(Answers):
    """Answers about files."""

    def batch(self, name: str) -> None:
        repo, asked = self._store.repo(name), self._json()
        rows = [self._actions(repo, row["oid"], row["size"]) for row in asked["objects"]]
        self._say(200, {"transfer": "basic", "objects": rows}, kind=LFS)

    def _actions(self, repo: Repo, sha256: str, size: int) -> dict[str, Any]:
        if sha256 in repo.lfs:
            return {"oid": sha256, "size": size}
        identity = secrets.token_hex(8)
        with self._store.lock:
            self._store.uploads[identity] = Upload(repo, sha256, size, self._store.chunk)
        verify = {"href": f"{self._host()}/{repo.name}.git/info/lfs/objects/verify"}
        store = f"{self._host(store=True)}/store/{identity}"
        if size <= self._store.chunk:
            return {"oid": sha256, "size": size, "actions": {"upload": {"href": f"{store}?{self._signature()}"}, "verify": verify}}
        header = {str(number + 1): f"{store}/{number + 1}?{self._signature()}" for number in range(-(-size // self._store.chunk))}
        end = f"{self._host()}/api/complete_multipart?upload={identity}&{self._signature()}"
        upload = {"href": end, "header": {"chunk_size": str(self._store.chunk), **header}}
        return {"oid": sha256, "size": size, "actions": {"upload": upload, "verify": verify}}

    def _upload(self, identity: str) -> Upload:
        if identity not in self._store.uploads:
            raise Refused(404, "NoSuchUpload")
        return self._store.uploads[identity]

    def _take(self) -> bytes:
        data = bytearray()
        for block in self._blocks():
            data += block
            self._store.received += len(block)
        return bytes(data)

    def store_whole(self, identity: str) -> None:
        self._signed()
        upload = self._upload(identity)
        self._keep(upload, identity, [self._take()])
        self._say(200, b"", {"ETag": '"whole"'})

    def store_part(self, identity: str, number: str) -> None:
        self._signed()
        upload = self._upload(identity)
        data = self._take()
        upload.parts[int(number)] = data
        self._say(200, b"", {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def store_complete(self) -> None:
        asked = self._json()
        identity = self.query.get("upload", "")
        upload = self._upload(identity)
        tags = {row["partNumber"]: row["etag"] for row in asked["parts"]}
        if {number: f'"{hashlib.md5(data).hexdigest()}"' for number, data in upload.parts.items()} != tags or asked["oid"] != upload.sha256:
            raise Refused(400, "InvalidPart")
        self._keep(upload, identity, [upload.parts[number] for number in sorted(upload.parts)])
        self._say(200, {})

    def _keep(self, upload: Upload, identity: str, parts: list[bytes]) -> None:
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        if digest.hexdigest() != upload.sha256 or sum(map(len, parts)) != upload.size:
            raise Refused(400, "BadDigest")
        temporary = self._store.folder / f".{identity}"
        with temporary.open("wb") as out:
            for part in parts:
                out.write(part)
        os.replace(temporary, self._store.object(upload.sha256))
        with self._store.lock:
            upload.repo.lfs.add(upload.sha256)
            self._store.uploads.pop(identity, None)

    def verify(self, name: str) -> None:
        asked, service = self._json(), self.server.service
        if service.fails_to_verify:
            service.fails_to_verify -= 1
            self._store.repo(name).lfs.discard(asked["oid"])
            raise Refused(500, "the object can't be verified")
        if asked["oid"] not in self._store.repo(name).lfs:
            raise Refused(404, "object not found")
        self._say(200, {})

    def resolve(self, name: str, revision: str, path: str) -> None:
        commit = self._store.repo(name).at(revision)
        if (file := commit.files.get(path)) is None:
            return self._say(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit.id})
        headers = {"X-Repo-Commit": commit.id, "Accept-Ranges": "bytes"}
        if file.sha256 is None:
            return self._ranged(self._store.contents(file), {**headers, "ETag": f'"{file.oid}"'})
        headers |= {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.sha256}"', "ETag": f'"{file.oid}"'}
        self._say(302, b"", {**headers, "Location": f"{self._host(store=True)}/cdn/{file.sha256}?{self._signature()}"})

    def store_read(self, sha256: str) -> None:
        self._signed()
        self._ranged(self._store.object(sha256).read_bytes(), {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"})

    def _ranged(self, data: bytes, headers: dict[str, str]) -> None:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None:
            return self._say(200, data, headers, "application/octet-stream")
        start, end = int(match.group(1)), min(int(match.group(2) or len(data)), len(data) - 1)
        if start >= len(data):
            return self._say(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        self._say(206, data[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(data)}"}, "application/octet-stream")
