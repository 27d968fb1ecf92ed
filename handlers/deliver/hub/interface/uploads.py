"""Large files as Git LFS objects: by one request, or in parts that are noted as they arrive, so that a cut or a kill costs one of them.

The Hub gives the addresses of all parts at once, for some hours, and says nothing later of those that came: so the addresses are noted too
(sealed, since they are a right to write), with what each part's arrival was answered.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.calls import BLOCK, Said
from handlers.deliver.hub.interface.repository import FILES_AT_ONCE, HUB, LFS_TYPE, Repository
from handlers.deliver.hub.interface.sealed import opened, sealed
from handlers.deliver.target import SMALL_BYTES, Resume
from handlers.deliver.version import SourceFile

ARRIVED = (200, 201, 204)
ENDED = frozenset({400, 403, 404, 410})
"""Answers by which the addresses of an upload do not serve any more."""


@dataclass(frozen=True)
class _Parts:
    """An upload in parts: where each goes, and where its end is said."""

    href: str
    chunk: int
    urls: tuple[str, ...]


class Uploads:
    """Those of one delivery."""

    def __init__(self, repository: Repository, resume: Resume, token: str) -> None:
        self._repository, self._resume, self._token = repository, resume, token
        self._mine: dict[str, int] = {}
        """Bytes that this process sent of each file, and that arrived."""
        self._given_up: set[str] = set()
        self._small: dict[str, SourceFile] = {}
        """Small files that will be put, by digest: the Hub is asked of many at once."""
        self._offered: dict[str, Json] = {}
        """What it said of them, for a try each: an address does not serve for long."""
        self._asking = threading.Lock()

    def expect(self, files: Iterable[SourceFile]) -> None:
        """Learn what will be put."""
        self._small = {file.sha256: file for file in files if file.size <= SMALL_BYTES}

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let the file lie there; gives bytes that did before this process came. Raises CkptdError."""
        actions = self._repository.actions_of(self._offer(file))
        if not actions:
            self._forget(file)
            return max(0, file.size - self._mine.get(file.sha256, 0))
        upload = actions["upload"]
        header = upload.get("header") if isinstance(upload.get("header"), dict) else {}
        before = 0
        if "chunk_size" in header:
            before = self._in_parts(file, self._known(file) or self._new(file, upload["href"], header), sent)
        else:
            self._whole(file, self._address(upload["href"]), header, sent)
        self._forget(file)  # before the Hub is asked whether it is whole: an upload that ended does not serve another try
        if isinstance(verify := actions.get("verify"), dict):
            body = b'{"oid": "%b", "size": %d}' % (file.sha256.encode(), file.size)
            headers = {"Content-Type": LFS_TYPE, "Accept": LFS_TYPE}
            self._repository.calls.ask("verify an upload", "POST", self._address(verify["href"]), body=body, headers=headers)
        return before

    def _offer(self, file: SourceFile) -> Json:
        """What the Hub says of a file."""
        with self._asking:
            if file.sha256 not in self._offered:
                self._small.pop(file.sha256, None)
                others = [self._small.pop(digest) for digest in list(self._small)[: FILES_AT_ONCE - 1]] if file.size <= SMALL_BYTES else []
                self._offered |= self._repository.batch([file, *others])
            return self._offered.pop(file.sha256)

    def _address(self, href: str) -> str:
        """Where the Hub means: mirrors hand on its answers as they are."""
        return self._repository.calls.base + href.removeprefix(HUB) if href.startswith(HUB + "/") else href

    def _whole(self, file: SourceFile, url: str, header: Mapping[str, Any], sent: Callable[[int], None]) -> None:
        headers = {str(name): str(value) for name, value in header.items() if str(name).lower() != "authorization"}
        headers |= {"Content-Length": str(file.size)}
        self._repository.calls.ask("upload a file", "PUT", url, body=lambda: file.whole(sent), headers=headers, accepted=ARRIVED)
        self._mine[file.sha256] = file.size

    def _new(self, file: SourceFile, href: str, header: Mapping[str, Any]) -> _Parts:
        """An upload that the Hub offers, noted."""
        urls = [str(url) for _, url in sorted((int(name), url) for name, url in header.items() if str(name).isdigit())]
        chunk = int(header["chunk_size"])
        if chunk <= 0 or len(urls) != -(-file.size // chunk):
            cause, remedy = f"the parts of an upload don't fit: {len(urls)} of {chunk} bytes for {file.size}", "look at the service"
            raise Permanent(FaultCode.DELIVERY_FAR_END, "ask where to upload", cause, remedy)
        parts = _Parts(self._address(href), chunk, tuple(self._address(url) for url in urls))
        self._forget(file)
        self._resume.keep(_note(file), {"sealed": sealed([parts.href, chunk, urls], self._token)})
        return parts

    def _known(self, file: SourceFile) -> _Parts | None:
        """The upload that was noted."""
        value = opened(str(self._resume.get(_note(file)).get("sealed", "")), self._token)
        return None if value is None else _Parts(value[0], value[1], tuple(map(self._address, value[2])))

    def _in_parts(self, file: SourceFile, parts: _Parts, sent: Callable[[int], None]) -> int:
        """Send what did not arrive yet, and say the end; gives bytes that arrived by earlier processes."""
        tags = []
        for number, url in enumerate(parts.urls, 1):
            tag = str(self._resume.get(_note(file, number)).get("etag", ""))
            if not tag:
                said = self._part(file, url, (number - 1) * parts.chunk, min(parts.chunk, file.size - (number - 1) * parts.chunk), sent)
                tag = said.headers.get("ETag", "")
                self._resume.keep(_note(file, number), {"etag": tag})
            tags.append({"partNumber": number, "etag": tag})
        body = {"oid": file.sha256, "parts": tags}
        self._ended(file, self._asked("end an upload", parts.href, body))
        return max(0, file.size - self._mine.get(file.sha256, 0))

    def _part(self, file: SourceFile, url: str, start: int, count: int, sent: Callable[[int], None]) -> Said:
        def body() -> Iterator[bytes]:
            for place in range(start, start + count, BLOCK):
                data = file.part(place, min(BLOCK, start + count - place))
                yield data
                sent(len(data))

        said = self._repository.calls.ask(
            "upload a part", "PUT", url, body=body, headers={"Content-Length": str(count)}, accepted=(*ARRIVED, *ENDED)
        )
        self._ended(file, said)
        self._mine[file.sha256] = self._mine.get(file.sha256, 0) + count
        return said

    def _asked(self, operation: str, url: str, body: Mapping[str, Any]) -> Said:
        headers = {"Content-Type": LFS_TYPE, "Accept": LFS_TYPE}
        return self._repository.calls.ask(
            operation, "POST", url, body=json.dumps(body).encode(), headers=headers, accepted=(*ARRIVED, *ENDED)
        )

    def _ended(self, file: SourceFile, said: Said) -> None:
        """Raise where an upload's addresses do not serve any more: the first time so that it begins anew, and as `SourceFile.open` for a
        file that changed."""
        if said.status not in ENDED:
            return
        self._forget(file)
        self._mine.pop(file.sha256, None)
        for _ in file.parts(BLOCK, file.size):  # parts were sent uncompared: maybe the file is not the manifest's any more
            pass
        error = self._repository.calls.error("upload a part", said)
        if file.sha256 in self._given_up or error.fault.code == FaultCode.DELIVERY_FULL:
            raise error
        self._given_up.add(file.sha256)
        raise Retryable(FaultCode.DELIVERY_FAR_END, "upload a part", error.fault.cause, "the upload begins anew by itself")

    def _forget(self, file: SourceFile) -> None:
        """Drop what was noted of the file."""
        for name in [name for name in list(self._resume.known) if name == _note(file) or name.startswith(_note(file) + " ")]:
            self._resume.keep(name, None)


def _note(file: SourceFile, number: int = 0) -> str:
    return f"upload {file.sha256}" + (f" {number}" if number else "")
