"""What the layout needs of a store: values by keys with "/", the first two parts of which are a run and a version."""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from handlers.deliver.version import SourceFile

MANIFEST = "MANIFEST.json"
LATEST = "latest.json"
MOST = 64 << 20
"""Bytes of a document that is read."""
_TYPES = mimetypes.MimeTypes()  # those of Python alone, not of the machine
for _ending, _type in ((".jinja", "text/plain"), (".md", "text/markdown"), (".mjs", "text/javascript"), (".wasm", "application/wasm")):
    _TYPES.add_type(_type, _ending)


@dataclass(frozen=True)
class Document:
    """A small value as it lies there."""

    body: bytes
    tag: str
    """What changes with it."""


class Backend(Protocol):
    """A store. Everything raises CkptdError."""

    place: str
    """For people, with "/" at its end."""

    def look(self) -> None:
        """Find out, changing nothing, whether it can be reached and written."""

    def has(self, key: str, file: SourceFile) -> bool:
        """Whether the file's contents lie there."""

    def send(self, key: str, file: SourceFile, sent: Callable[[int], None], *, anew: bool = False) -> int:
        """Let them lie there; gives the bytes that earlier attempts had sent. `anew`: in place of what lies there."""

    def copy(self, source: str, key: str, file: SourceFile) -> bool:
        """Let them lie there without sending them, as `source` does; False where that can't be done."""

    def stream(self, key: str) -> Iterator[bytes]:
        """The contents as they are there."""

    def read(self, key: str) -> Document | None:
        """A small value; None where there is none."""

    def write(self, key: str, data: bytes, tag: str | None) -> bool:
        """Write a small value, if the one that lies there has that tag ("": if none lies there; None: whatever does); False if not."""

    def publish(self, folder: str, data: bytes) -> bool:
        """Write the manifest of a version whose files all lie there, by which readers see it; False if it has one already."""

    def clear(self, folder: str) -> None:
        """Take away what unfinished attempts at a version left besides files."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Names of what lies below a prefix and is no value, hidden ones not among them."""

    def files(self, prefix: str) -> Sequence[str]:
        """Names of the values directly below a prefix."""

    def delete(self, key: str) -> None:
        """Take a value away, if it is there."""

    def close(self) -> None:
        """Let go of connections."""


def headers_of(key: str) -> dict[str, str]:
    """What browsers are told of a value: its type, and whether it can change."""
    changes = (key.rpartition("/")[2] == LATEST and key.count("/") == 1) or "/.begun/" in key
    kind = _TYPES.guess_type(key.rpartition("/")[2])[0] or "application/octet-stream"
    if kind.startswith("text/"):
        kind += "; charset=utf-8"
    return {"Content-Type": kind, "Cache-Control": "no-cache" if changes else "public, max-age=31536000, immutable"}
