"""Uploads of large files to S3 in parts: the upload's number is noted, and what lies there of it is asked of the service, so that a cut or
a kill costs a part."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Body, Said
from handlers.deliver.store.answers import child, elements, first
from handlers.deliver.target import Resume
from handlers.deliver.version import SourceFile

MOST_PARTS = 10_000
AHEAD = 2
"""Parts that were begun: while the service thinks about one, the next goes (`Calls` lets one body at a time go)."""


class Ask(Protocol):
    """How a request is signed and sent."""

    def __call__(
        self, operation: str, method: str, key: str, values: Mapping[str, str] | None = None, *, body: Body | None = None,
        headers: Mapping[str, str] | None = None, accepted: Iterable[int] = (200,),
    ) -> Said: ...  # fmt: skip


class Uploads:
    """Those of one delivery."""

    def __init__(self, ask: Ask, resume: Resume, part: int) -> None:
        self._ask, self._resume, self.part = ask, resume, part

    def send(self, key: str, file: SourceFile, headers: Mapping[str, str], sent: Callable[[int], None]) -> int:
        """Let the file lie there; gives what earlier attempts had sent."""
        part, note = max(self.part, -(-file.size // MOST_PARTS)), f"upload {key}"
        upload, tags = self._known(key, file, part)
        if not upload:
            upload = self._number(key, headers)
            self._resume.keep(note, {"id": upload, "sha256": file.sha256, "part": part})
        there = sum(min(part, file.size - (place - 1) * part) for place in tags)
        first = next(place for place in range(1, len(tags) + 2) if place not in tags)
        waiting: deque[tuple[int, int, Future[str]]] = deque()

        def wait() -> None:
            place, size, answer = waiting.popleft()
            tags[place] = answer.result()
            sent(size)

        with ThreadPoolExecutor(AHEAD) as pool:
            for place, block in enumerate(file.parts(part, min(file.size, (first - 1) * part), AHEAD), first):
                if block and place not in tags:
                    waiting.append((place, len(block), pool.submit(self._tag, key, upload, place, block)))
                while waiting and waiting[0][0] <= place + 1 - AHEAD:  # its block is overwritten by the next one, also after parts left out
                    wait()
            while waiting:
                wait()
        self._end(key, upload, tags)
        self._resume.keep(note, None)
        return there

    def _tag(self, key: str, upload: str, place: int, block: bytearray) -> str:
        """Send a part; gives its tag."""
        values = {"partNumber": str(place), "uploadId": upload}
        said = self._ask("send a part", "PUT", key, values, body=block, accepted=(200, 404))
        if said.status == 404:
            raise self._lost(f"upload {key}")
        return said.headers.get("ETag", "")

    def _number(self, key: str, headers: Mapping[str, str]) -> str:
        """Begin an upload."""
        number = first(self._ask("begin an upload", "POST", key, {"uploads": ""}, headers=headers), "UploadId")
        if not number:
            remedy = "look at the service, or for a proxy before it"
            raise Retryable(FaultCode.DELIVERY_FAR_END, "begin an upload", "the answer has no number of an upload", remedy)
        return number

    def _known(self, key: str, file: SourceFile, part: int) -> tuple[str, dict[int, str]]:
        """An upload that was noted, with the tags of the parts that lie there, by their numbers; ("", {}) where there is none any more."""
        known = self._resume.get(f"upload {key}")
        number, tags = str(known.get("id", "")), dict[int, str]()
        if not number or known.get("sha256") != file.sha256 or known.get("part") != part:
            return "", {}
        marker = ""
        for _ in range(MOST_PARTS):
            values = {"uploadId": number} | ({"part-number-marker": marker} if marker else {})
            said = self._ask("look at an upload", "GET", key, values, accepted=(200, 404))
            if said.status == 404:
                self._resume.keep(f"upload {key}", None)
                return "", {}
            for row in elements(said, "Part"):
                place, size = child(row, "PartNumber"), child(row, "Size")
                if (
                    place.isdecimal()
                    and 0 < int(place) <= -(-file.size // part)
                    and size == str(min(part, file.size - (int(place) - 1) * part))
                ):
                    tags[int(place)] = child(row, "ETag")  # others are sent again
            marker = first(said, "NextPartNumberMarker")
            if first(said, "IsTruncated") != "true" or not marker:
                break
        return number, tags

    def _end(self, key: str, number: str, tags: Mapping[int, str]) -> None:
        """Let the parts be one object. The answer may be an error in spite of its status."""
        rows = "".join(
            f"<Part><PartNumber>{place}</PartNumber><ETag>{tag.replace('&', '&amp;').replace('<', '&lt;')}</ETag></Part>"
            for place, tag in sorted(tags.items())
        )
        body = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{rows}</CompleteMultipartUpload>'.encode()
        try:
            said = self._ask("end an upload", "POST", key, {"uploadId": number}, body=body, accepted=(200, 404))
        except Permanent:
            self._resume.keep(f"upload {key}", None)
            raise
        if said.status == 404:
            raise self._lost(f"upload {key}")
        if code := first(said, "Code"):
            remedy = "look at the service; the delivery is tried again by itself"
            raise Retryable(FaultCode.DELIVERY_FAR_END, "end an upload", f"the service says {code}", remedy)

    def _lost(self, note: str) -> Retryable:
        """The error of an upload that is not known any more: it begins anew."""
        self._resume.keep(note, None)
        remedy = "it begins anew by itself; let the store keep unfinished uploads for longer"
        return Retryable(FaultCode.DELIVERY_FAR_END, "send a part", "the upload is not there any more", remedy)
