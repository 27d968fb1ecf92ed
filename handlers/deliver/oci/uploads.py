"""The upload of one file as a blob, in chunks that are noted as they arrive, so that a cut or a kill costs one of them.

Where a registry takes no chunks the file is sent by one request. Some registries (docker-registry 2.8 is one) give an upload up when a
chunk is cut in its midst: the file begins anew there.
"""

from __future__ import annotations

from collections.abc import Callable

from daemon.contract.faults.errors import CkptdError, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Said, plain
from handlers.deliver.oci.registry import BYTES, Registry, digest_of_file
from handlers.deliver.target import Resume
from handlers.deliver.version import SourceFile

MOST_CHUNK = 32 << 20
"""Bytes of a chunk at the most, whatever a registry wishes: it is held in memory."""
NO_SUCH = frozenset({400, 404, 405, 416, 501})
"""Answers to a chunk by which an upload is unknown there, or chunks are."""


class Uploads:
    """Those of one delivery."""

    def __init__(self, registry: Registry, resume: Resume, chunk: int) -> None:
        self._registry, self._resume, self._chunk = registry, resume, chunk
        self._sent: dict[str, int] = {}
        """Bytes that this process sent of a file's upload."""
        self._refused: dict[str, int] = {}
        """How often a file's chunks were refused."""

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Let the file lie there; gives bytes that did before this process came. Raises CkptdError."""
        digest = digest_of_file(file)
        if self._registry.has(digest, file.size):
            self._resume.keep(_note(file), None)
            return max(0, file.size - self._sent.get(digest, 0))
        whole, chunk = self._refused.get(digest, 0) > 1, self._chunk
        url, offset = ("", 0) if whole else self._known(file)
        if not url:
            begun = self._registry.begin()
            least = begun.headers.get("OCI-Chunk-Min-Length", "")
            url, chunk, self._sent[digest] = self._registry.location(begun), max(chunk, int(least) if least.isdigit() else 0), 0
        before = max(0, offset - self._sent.get(digest, 0))
        if whole or chunk > MOST_CHUNK:
            self._whole(file, url, sent)
        else:
            self._in_chunks(file, url, offset, chunk, sent)
        self._resume.keep(_note(file), None)
        return before

    def _known(self, file: SourceFile) -> tuple[str, int]:
        """Where an upload that was noted goes on; ("", 0) where there is none any more."""
        url = str(self._resume.get(_note(file)).get("url", ""))
        if not url:
            return "", 0
        said = self._registry.calls.ask("look at an upload", "GET", url, accepted=(200, 204, *NO_SUCH))
        offset = _end_of(said)
        if offset == 0 and self._refused.get(digest_of_file(file)) and said.headers.get("Range", "").endswith("0-0"):
            offset = 1  # it has a single byte, which is said as none is, and took no part from the beginning
        if said.status not in (200, 204) or offset is None or offset > file.size:
            self._resume.keep(_note(file), None)
            return "", 0
        return (self._registry.location(said) if said.headers.get("Location") else url), offset

    def _in_chunks(self, file: SourceFile, url: str, offset: int, chunk: int, sent: Callable[[int], None]) -> None:
        """Send what follows `offset`, the last chunk with the request that ends the upload."""
        for data in file.parts(chunk, offset):
            last = offset + len(data) >= file.size
            headers = {"Content-Range": f"{offset}-{offset + len(data) - 1}"} if data else {}
            if last:
                said = self._registry.close(url, digest_of_file(file), data, headers if offset else {}, NO_SUCH)
                if said.status in NO_SUCH:
                    raise self._refusal(file, said)
            else:
                url = self._part(file, url, offset, data, headers)
            offset += len(data)
            self._sent[digest_of_file(file)] = self._sent.get(digest_of_file(file), 0) + len(data)
            sent(len(data))

    def _part(self, file: SourceFile, url: str, offset: int, data: bytearray, headers: dict[str, str]) -> str:
        """Send a chunk; gives where the next goes."""
        if not offset:
            self._resume.keep(_note(file), {"url": url})
        said = self._registry.calls.ask(
            "send a part", "PATCH", url, body=data, headers={**BYTES, **headers}, accepted=(202, 201, 204, *NO_SUCH)
        )
        if said.status in NO_SUCH:
            raise self._refusal(file, said)
        url = self._registry.location(said) if said.headers.get("Location") else url
        self._resume.keep(_note(file), {"url": url})
        end = _end_of(said)
        if end is not None and end != offset + len(data):
            raise _behind(f"the registry has {end} bytes of {offset + len(data)} that were sent", said)
        return url

    def _refusal(self, file: SourceFile, said: Said) -> CkptdError:
        """The error of a part that was not taken: the upload is looked at again, or begins anew."""
        error = self._registry.calls.error("send a part", said)
        if error.fault.code == FaultCode.DELIVERY_FULL:
            return error
        self._refused[digest_of_file(file)] = self._refused.get(digest_of_file(file), 0) + 1
        if said.status != 416:
            self._resume.keep(_note(file), None)
        return _behind(f"the registry answered {said.status} to a part: {self._registry.calls.masked(said.words)}", said)

    def _whole(self, file: SourceFile, url: str, sent: Callable[[int], None]) -> None:
        """Send the file by one request."""

        self._registry.close(url, digest_of_file(file), lambda: file.whole(sent), {"Content-Length": str(file.size)})


def _note(file: SourceFile) -> str:
    return f"upload {file.sha256}"


def _end_of(said: Said) -> int | None:
    """Bytes of an upload that a registry has, by its header Range; None where it says nothing. "0-0" is how some say that it has none."""
    first, dash, last = said.headers.get("Range", "").removeprefix("bytes=").partition("-")
    if not dash or not first.isdigit() or not last.isdigit():
        return None
    return int(last) + 1 if int(last) else 0


def _behind(cause: str, said: Said) -> Retryable:
    return Retryable(
        FaultCode.DELIVERY_FAR_END,
        "send a part",
        cause,
        "look at the registry; the delivery is tried again by itself",
        path=plain(said.url),
    )
