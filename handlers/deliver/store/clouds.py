"""Google Cloud Storage and Azure's blobs, by obstore, whose own retries are off. An upload that is cut begins anew."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.far_end import error_of, unreachable
from handlers.deliver.store.access import variables
from handlers.deliver.store.backend import MANIFEST, Document, headers_of
from handlers.deliver.store.declaration import KIND, StoreOptions
from handlers.deliver.version import BLOCK, SourceFile

DIGEST = "sha256"
_STATUS = re.compile(r"\b(?:status(?: code)?:? |\()(\d{3})\b")
STATUSES = {
    exceptions.PermissionDeniedError: 403, exceptions.UnauthenticatedError: 401, exceptions.NotFoundError: 404,
    exceptions.AlreadyExistsError: 409, exceptions.PreconditionError: 412,
}  # fmt: skip
SAID = 300
"""Characters of a library's own words that are passed on."""


class Cloud:
    """The store."""

    def __init__(self, options: StoreOptions, secret: str) -> None:
        names = "GOOGLE_" if options.scheme == "gs" else "AZURE_"
        known = {
            name: value for name, value in variables(secret).items() if name.startswith(names) and name in KIND.secret_variables and value
        }
        self._part = options.part_bytes
        self._secrets = [value for name, value in known.items() if re.search("KEY|SECRET|TOKEN|STRING", name)]
        self.place = f"{options.scheme}://{options.bucket}/{options.prefix}"
        try:
            self._store: Any = self.connect(options, known)
        except (exceptions.BaseError, ValueError) as error:
            remedy = "correct the target's secret file, or the variables of that cloud"
            operation = "read the credentials of the target"
            raise Permanent(FaultCode.DELIVERY_REFUSED, operation, self._masked(str(error)), remedy, path=self.place) from None

    def connect(self, options: StoreOptions, known: Mapping[str, str]) -> Any:
        """The library's store."""
        more: Any = {
            "prefix": options.prefix or None, "retry_config": {"max_retries": 0},
            "client_options": {"allow_http": options.endpoint.startswith("http:"), "timeout": "300s", "connect_timeout": "15s"},
            "config": {name.lower(): value for name, value in known.items()},
        }  # fmt: skip
        if options.scheme == "gs":
            return GCSStore(options.bucket, **more)
        if options.endpoint:
            more["endpoint"] = options.endpoint
        return AzureStore(options.bucket, **more)

    def close(self) -> None:
        """The library closes connections itself."""

    def _masked(self, words: str) -> str:
        """The library's words without secrets, and without its own inside."""
        words = " ".join(words.split("Debug source")[0].split())
        for secret in self._secrets:
            words = words.replace(secret, "***")
        return words[:SAID]

    @contextlib.contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        """The library's errors as those of a delivery, without secrets."""
        try:
            yield
        except CkptdError:
            raise
        except (exceptions.BaseError, OSError, ValueError) as error:
            words = self._masked(str(error))
            status = next((code for kind, code in STATUSES.items() if isinstance(error, kind)), None)
            if status is None and (said := _STATUS.search(words)):
                status = int(said.group(1))
            if status is not None:
                raise error_of(status, operation, words, self.place) from None
            raise unreachable(operation, Exception(words), self.place) from None

    def look(self) -> None:
        """List what lies there: these services say nothing about writing before one writes."""
        self.files("")

    def has(self, key: str, file: SourceFile) -> bool:
        """By the digest that was written with it, and its size."""
        with self._errors("look for a file"):
            try:
                there = obstore.get(self._store, key, options={"head": True})
            except (exceptions.NotFoundError, FileNotFoundError):
                return False
            return there.meta["size"] == file.size and there.attributes.get(DIGEST) == file.sha256

    def send(self, key: str, file: SourceFile, sent: Callable[[int], None], *, anew: bool = False) -> int:
        """Send it, in parts where it is large."""
        failures: list[CkptdError] = []

        def blocks() -> Iterator[bytes]:
            try:
                for block in file.parts(BLOCK):
                    yield bytes(block)
                    sent(len(block))
            except CkptdError as error:
                failures.append(error)
                raise

        with self._errors("send a file"):
            try:
                obstore.put(
                    self._store, key, blocks() if file.size else b"", attributes={**headers_of(key), DIGEST: file.sha256},
                    use_multipart=file.size > self._part, chunk_size=self._part, max_concurrency=1,
                )  # fmt: skip
            except Exception:
                if failures:
                    raise failures[0] from None
                raise
        return 0

    def copy(self, source: str, key: str, file: SourceFile) -> bool:
        """Within the store, with all that is known of it."""
        if not self.has(source, file):
            return False
        with self._errors("copy a file"):
            obstore.copy(self._store, source, key)
        return True

    def stream(self, key: str) -> Iterator[bytes]:
        """The object."""
        with self._errors("read a file back"):
            for block in obstore.get(self._store, key).stream(min_chunk_size=BLOCK):
                yield bytes(block)

    def read(self, key: str) -> Document | None:
        """A small object, by its ETag and generation."""
        with self._errors("read a document"):
            try:
                there = obstore.get(self._store, key)
                body = bytes(there.bytes())
            except (exceptions.NotFoundError, FileNotFoundError):
                return None
            return Document(body, json.dumps({name: value for name in ("e_tag", "version") if (value := there.meta[name]) is not None}))

    def write(self, key: str, data: bytes, tag: str | None) -> bool:
        """Write it under the condition that nobody wrote meanwhile."""
        mode: Any = "overwrite" if tag is None else json.loads(tag) if tag else "create"
        with self._errors("write a document"):
            try:
                obstore.put(self._store, key, data, attributes=headers_of(key), mode=mode, use_multipart=False)
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileExistsError):
                return False
        return True

    def publish(self, folder: str, data: bytes) -> bool:
        """Write the manifest, once."""
        return self.write(f"{folder}/{MANIFEST}", data, "")

    def clear(self, folder: str) -> None:
        """These services let go of unfinished uploads by themselves."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Common prefixes."""
        names = self._below(prefix)["common_prefixes"]
        return [name for each in names if not (name := each.rstrip("/").rpartition("/")[2]).startswith(".")]

    def files(self, prefix: str) -> Sequence[str]:
        """Objects."""
        return [str(row["path"]).rpartition("/")[2] for row in self._below(prefix)["objects"]]

    def _below(self, prefix: str) -> Any:
        with self._errors("list the store"):
            return obstore.list_with_delimiter(self._store, prefix or None)

    def delete(self, key: str) -> None:
        """Delete the object."""
        with self._errors("remove a file"), contextlib.suppress(exceptions.NotFoundError, FileNotFoundError):
            obstore.delete(self._store, key)
