"""S3, and services that speak as it does, by their requests: https://docs.aws.amazon.com/AmazonS3/latest/API/.

Each object has the digest of its file among its metadata, and each request the digest of its body, which the service compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import unquote_plus

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Body, Calls, Said, plain
from handlers.deliver.store.access import Keys, keys_of_aws, variables
from handlers.deliver.store.answers import child, elements, first
from handlers.deliver.store.backend import MANIFEST, MOST, Document, headers_of
from handlers.deliver.store.declaration import StoreOptions
from handlers.deliver.store.signing import Signer, path, query
from handlers.deliver.store.uploads import Uploads
from handlers.deliver.target import Resume
from handlers.deliver.version import BLOCK, SourceFile

DIGEST = "x-amz-meta-sha256"
MOST_COPIED = 5 << 30
"""Bytes that one request copies."""
PASSING = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "InternalError", "SlowDown", "ServiceUnavailable"})
"""Codes of errors after which the same request may be answered in another way, whatever their status."""
PAGES = 10_000


class S3:
    """The store."""

    def __init__(self, options: StoreOptions, secret: str, resume: Resume) -> None:
        known = variables(secret)
        region = options.region or known.get("AWS_REGION") or known.get("AWS_DEFAULT_REGION") or "us-east-1"
        self._keys, self._hidden = keys_of_aws(secret), set[str]()
        self._signer = Signer(self._now, region)
        self._fence, self._prefix, self._bucket = options.fence, options.prefix, options.bucket
        base = options.endpoint or f"https://s3.{region}.amazonaws.com"
        if (options.addressing or ("path" if options.endpoint or "." in self._bucket else "virtual")) == "virtual":
            scheme, _, host = base.partition("://")
            base, self._root = f"{scheme}://{self._bucket}.{host}", ""
        else:
            self._root = f"/{self._bucket}"
        self._calls = Calls(base, options.ca_file)
        self._uploads = Uploads(self.ask, resume, options.part_bytes)
        self.place = f"s3://{self._bucket}/{self._prefix}"

    def _now(self) -> Keys:
        """The keys, which no text shows from now on."""
        keys = self._keys()
        for secret in {keys.secret, keys.token} - self._hidden - {""}:
            self._calls.hide(secret)
            self._hidden.add(secret)
        return keys

    def close(self) -> None:
        """Close connections."""
        self._calls.close()

    def address(self, key: str | None, values: Mapping[str, str] | None = None) -> str:
        """The address of a value; None: of the bucket."""
        where = f"{self._root}/{path(self._prefix + key)}" if key is not None else self._root or "/"
        return f"{self._calls.base}{where}" + (f"?{query(values)}" if values else "")

    def ask(
        self, operation: str, method: str, key: str | None, values: Mapping[str, str] | None = None, *, body: Body | None = None,
        headers: Mapping[str, str] | None = None, accepted: Iterable[int] = (200,), digest: str = "",
    ) -> Said:  # fmt: skip
        """An answer. `digest`: SHA-256 of a body that is a stream. Raises CkptdError."""
        url, accepted = self.address(key, values), frozenset(accepted)
        digest = digest or hashlib.sha256(b"" if callable(body) or body is None else body).hexdigest()
        for late in (False, True):
            signed = self._signer.signed(method, url, headers or {}, digest)
            said = self._calls.ask(operation, method, url, body=body, headers=signed, accepted=range(200, 600), most=MOST)
            if said.status in accepted:
                return said
            code = first(said, "Code")
            if code != "RequestTimeTooSkewed" or late or not self._signer.learn(said.headers.get("Date", "")):
                break
        raise self._error(operation, said, code)

    def _error(self, operation: str, said: Said, code: str) -> CkptdError:
        """The error that an answer stands for."""
        if code in PASSING:
            cause = f"the far end answered {said.status}: {self._calls.masked(said.words)}"
            remedy = "look at the service; the delivery is tried again by itself"
            return Retryable(FaultCode.DELIVERY_FAR_END, operation, cause, remedy, path=plain(said.url))
        return self._calls.error(operation, said)

    def look(self) -> None:
        """Begin an upload and take it back: that asks for the right to write, and leaves nothing."""
        said = self.ask("begin an upload", "POST", ".ckptd", {"uploads": ""})
        self.ask("cancel an upload", "DELETE", ".ckptd", {"uploadId": first(said, "UploadId")}, accepted=(200, 204, 404))

    def has(self, key: str, file: SourceFile) -> bool:
        """By the digest that was written with it, and its size."""
        said = self.ask("look for a file", "HEAD", key, accepted=(200, 404))
        size = said.headers.get("Content-Length", str(file.size))
        return said.status == 200 and said.headers.get(DIGEST) == file.sha256 and size == str(file.size)

    def send(self, key: str, file: SourceFile, sent: Callable[[int], None], *, anew: bool = False) -> int:
        """By one request, or in parts."""
        headers = {**headers_of(key), DIGEST: file.sha256}
        if file.size > self._uploads.part:
            return self._uploads.send(key, file, headers, sent)

        def body() -> Iterator[bytearray]:
            for block in file.parts(BLOCK):
                yield block
                sent(len(block))

        self.ask(
            "send a file", "PUT", key, body=body, headers={**headers, "Content-Length": str(file.size)}, digest=file.sha256
        )  # fmt: skip
        return 0

    def copy(self, source: str, key: str, file: SourceFile) -> bool:
        """Within the store."""
        if file.size > MOST_COPIED:
            return False
        headers = {
            **headers_of(key), DIGEST: file.sha256, "x-amz-metadata-directive": "REPLACE",
            "x-amz-copy-source": f"/{self._bucket}/{path(self._prefix + source)}",
        }  # fmt: skip
        said = self.ask("copy a file", "PUT", key, headers=headers, accepted=(200, 404))
        return said.status == 200 and not first(said, "Code")

    def stream(self, key: str) -> Iterator[bytes]:
        """The object."""
        url = self.address(key)
        return self._calls.stream("read a file back", url, self._signer.signed("GET", url, {}, hashlib.sha256().hexdigest()))

    def read(self, key: str) -> Document | None:
        """A small object, by its ETag."""
        said = self.ask("read a document", "GET", key, accepted=(200, 404))
        if said.status == 404 and first(said, "Code") == "NoSuchBucket":
            raise self._calls.error("read a document", said)
        return Document(said.body, said.headers.get("ETag", "")) if said.status == 200 else None

    def write(self, key: str, data: bytes, tag: str | None) -> bool:
        """Write it under the condition that nobody wrote meanwhile."""
        condition = {} if tag is None else {"If-Match": tag} if tag else {"If-None-Match": "*"}
        if condition and not self._fence:
            there, condition = self.read(key), {}
            if (there.tag if there else "") != tag:
                return False
        refused = (404, 409, 412, 501) if condition else ()
        said = self.ask("write a document", "PUT", key, body=data, headers={**headers_of(key), **condition}, accepted=(200, *refused))
        if said.status == 501:
            remedy = "set the target's `fence = false`, where nobody else writes there, or use a service that knows them"
            raise Permanent(
                FaultCode.DELIVERY_REFUSED, "write a document", "the service knows no conditional writes", remedy, path=plain(said.url)
            )
        if said.status == 404 and not tag:
            raise self._calls.error("write a document", said)
        return said.status == 200

    def publish(self, folder: str, data: bytes) -> bool:
        """Write the manifest, once."""
        return self.write(f"{folder}/{MANIFEST}", data, "")

    def clear(self, folder: str) -> None:
        """Cancel uploads that nobody will end. Who may not list them leaves that to the bucket's own rules."""
        wish = {"uploads": "", "prefix": f"{self._prefix}{folder}/"}
        said = self.ask("list the uploads", "GET", None, wish, accepted=(200, 400, 403, 404, 405, 501))
        for upload in elements(said, "Upload") if said.status == 200 else ():
            key = child(upload, "Key").removeprefix(self._prefix)
            self.ask("cancel an upload", "DELETE", key, {"uploadId": child(upload, "UploadId")}, accepted=(200, 204, 404))

    def folders(self, prefix: str) -> Sequence[str]:
        """Common prefixes."""
        return [name.rstrip("/") for name in self._below(prefix, "CommonPrefixes", "Prefix") if not name.startswith(".")]

    def files(self, prefix: str) -> Sequence[str]:
        """Objects."""
        return self._below(prefix, "Contents", "Key")

    def _below(self, prefix: str, rows: str, name: str) -> list[str]:
        whole, names, more = self._prefix + prefix, list[str](), ""
        for _ in range(PAGES):
            wish = {"list-type": "2", "prefix": whole, "delimiter": "/", "encoding-type": "url"}
            said = self.ask("list the store", "GET", None, wish | ({"continuation-token": more} if more else {}))
            names += [unquote_plus(child(row, name)).removeprefix(whole) for row in elements(said, rows)]
            if not (more := first(said, "NextContinuationToken")):
                break
        return names

    def delete(self, key: str) -> None:
        """Delete the object."""
        self.ask("remove a file", "DELETE", key, accepted=(200, 204, 404))
