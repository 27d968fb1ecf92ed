"""The requests of the OCI distribution specification, 1.1, over one repository.

https://github.com/opencontainers/distribution-spec/blob/v1.1.0/spec.md
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.calls import Body, Calls, Said, plain
from handlers.deliver.version import SourceFile

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = ", ".join((OCI_MANIFEST, DOCKER_MANIFEST, "application/vnd.oci.image.index.v1+json", "*/*"))
PAGE = 1000
"""Tags that are asked for at once."""
MOST_PAGES = 1000
BYTES = {"Content-Type": "application/octet-stream"}
_NEXT = re.compile(r'<([^>]+)>\s*;[^,]*rel="?next"?')


@dataclass(frozen=True)
class Manifest:
    """A manifest as a registry keeps it."""

    body: bytes
    digest: str
    etag: str
    document: Json

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Its annotations."""
        value = self.document.get("annotations")
        return value if isinstance(value, dict) else {}


class Registry:
    """One repository of a registry."""

    def __init__(self, calls: Calls, path: str) -> None:
        self.calls, self.path = calls, path
        self._url = f"{calls.base}/v2/{path}"

    def has(self, digest: str, size: int) -> bool:
        """Whether a blob of that size lies there."""
        said = self.calls.ask("look for a blob", "HEAD", f"{self._url}/blobs/{digest}", accepted=(200, 404))
        return said.status == 200 and said.headers.get("Content-Length", str(size)) == str(size)

    def blob(self, digest: str) -> Iterator[bytes]:
        """A blob in blocks."""
        return self.calls.stream("read a blob back", f"{self._url}/blobs/{digest}")

    def begin(self) -> Said:
        """Begin an upload."""
        return self.calls.ask("begin an upload", "POST", f"{self._url}/blobs/uploads/", body=b"", accepted=(202,))

    def cancel(self, url: str) -> None:
        """End an upload that is of no use; a registry that can't ends it by itself."""
        self.calls.ask("cancel an upload", "DELETE", url, accepted=range(200, 600))

    def keep_bytes(self, data: bytes) -> str:
        """Let a small document lie there as a blob; gives its digest."""
        digest = digest_of(data)
        if not self.has(digest, len(data)):
            self.close(self.location(self.begin()), digest, data)
        return digest

    def close(
        self, url: str, digest: str, body: Body, headers: Mapping[str, str] | None = None, accepted: Iterable[int] = ()
    ) -> Said:  # fmt: skip
        """End an upload with its last bytes."""
        return self.calls.ask(
            "end an upload", "PUT", f"{url}{'&' if urlsplit(url).query else '?'}digest={quote(digest, safe='')}", body=body,
            headers={**BYTES, **(headers or {})}, accepted=(201, 204, *accepted),
        )  # fmt: skip

    def location(self, said: Said) -> str:
        """Where an upload goes on. Raises Retryable where an answer does not say it."""
        if not (location := said.headers.get("Location")):
            cause = "the registry's answer does not say where the upload goes on"
            raise Retryable(FaultCode.DELIVERY_FAR_END, "upload a blob", cause, "look at the registry", path=plain(said.url))
        return self.calls.resolved(location, said.url)

    def manifest(self, reference: str) -> Manifest | None:
        """A manifest by its tag or digest; None where there is none. Raises Permanent where it is not what its digest says."""
        said = self.calls.ask(
            "read a manifest",
            "GET",
            f"{self._url}/manifests/{quote(reference, safe=':')}",
            headers={"Accept": ACCEPTED},
            accepted=(200, 404),
        )
        if said.status == 404:
            return None
        digest = digest_of(said.body)
        for named in (reference if ":" in reference else "", said.headers.get("Docker-Content-Digest", "")):
            if named.startswith("sha256:") and named != digest:
                raise _another(f"the manifest {reference}", said)
        document = said.json()
        return Manifest(said.body, digest, said.headers.get("ETag", ""), document if isinstance(document, dict) else {})

    def put_manifest(self, tag: str, body: bytes, fence: Mapping[str, str] | None = None) -> bool:
        """Let a tag stand for a manifest; False where a fence that the registry knows kept it from that."""
        accepted = (200, 201, 202, 400, 404, *((412,) if fence else ()))
        said = self.calls.ask(
            f"write the tag {tag}", "PUT", f"{self._url}/manifests/{tag}", body=body, accepted=accepted,
            headers={"Content-Type": _media_of(body), **(fence or {})},
        )  # fmt: skip
        if said.status == 412:
            return False
        if said.status >= 400:
            if "BLOB_UNKNOWN" in said.words:  # the registry's own clean-up took what lay there: it is put again by the next attempt
                remedy = "it is delivered again by itself; let the registry keep unused blobs for longer"
                raise Retryable(
                    FaultCode.DELIVERY_FAR_END, f"write the tag {tag}", "the registry lost what was uploaded", remedy, path=plain(said.url)
                )
            raise self.calls.error(f"write the tag {tag}", said)
        if (named := said.headers.get("Docker-Content-Digest", "")).startswith("sha256:") and named != digest_of(body):
            raise _another(f"the manifest {tag}", said)
        return True

    def tags(self) -> list[str]:
        """All tags; [] where there is no such repository."""
        url, tags = f"{self._url}/tags/list?n={PAGE}", list[str]()
        for _ in range(MOST_PAGES):
            said = self.calls.ask("list the tags", "GET", url, accepted=(200, 404))
            document = said.json()
            if said.status == 404 or not isinstance(document, dict):
                return tags
            tags += [tag for tag in document.get("tags") or () if isinstance(tag, str)]
            if not (following := _NEXT.search(said.headers.get("Link", ""))):
                return tags
            url = self.calls.resolved(following.group(1), said.url)
        return tags

    def delete(self, digest: str) -> None:
        """Take a manifest away, and all tags that stand for it. Raises Permanent where the registry does not allow that."""
        said = self.calls.ask("remove a version", "DELETE", f"{self._url}/manifests/{digest}", accepted=(200, 202, 204, 404, 400, 405))
        if said.status in (400, 405):
            remedy = (
                "allow deletions in the registry (REGISTRY_STORAGE_DELETE_ENABLED=true of docker-registry), or let its own rules remove"
            )
            cause = f"the registry does not allow it: {self.calls.masked(said.words)}"
            raise Permanent(FaultCode.DELIVERY_REFUSED, "remove a version", cause, remedy, path=plain(said.url))


def repositories(calls: Calls) -> list[str]:
    """The registry's repositories, by a request that not every registry has. Raises Permanent where this one has not."""
    url, names = f"{calls.base}/v2/_catalog?n={PAGE}", list[str]()
    for _ in range(MOST_PAGES):
        said = calls.ask("list the repositories", "GET", url, accepted=(200, 401, 403, 404, 405))
        document = said.json()
        if said.status != 200 or not isinstance(document, dict):
            remedy = "name a run, or a repository without {run} in the configuration"
            cause = "the registry does not say which repositories it has"
            raise Permanent(FaultCode.DELIVERY_REFUSED, "list the repositories", cause, remedy, path=plain(said.url))
        names += [name for name in document.get("repositories") or () if isinstance(name, str)]
        if not (following := _NEXT.search(said.headers.get("Link", ""))):
            break
        url = calls.resolved(following.group(1), said.url)
    return names


def digest_of(data: bytes) -> str:
    """The digest by which a registry knows bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_file(file: SourceFile) -> str:
    """That of a file."""
    return f"sha256:{file.sha256}"


def _media_of(body: bytes) -> str:
    return DOCKER_MANIFEST if DOCKER_MANIFEST.encode() in body else OCI_MANIFEST


def _another(what: str, said: Said) -> Permanent:
    remedy = "look for a proxy or a cache between here and there, and deliver again"
    return Permanent(
        FaultCode.DELIVERY_MISMATCH, "compare what was delivered", f"{what} is not what was written", remedy, path=plain(said.url)
    )
