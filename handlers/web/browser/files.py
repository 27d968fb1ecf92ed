"""What a page may see: files of a few folders, each below a path of its own, and arrays that are sent to it. Nothing else exists for it.

Called by `page`, which answers the page's requests with it.
"""

from __future__ import annotations

import contextlib
import mimetypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

HOST = "https://check.invalid"
"""No such host exists: what is not answered here is answered by nobody."""
INBOX = "inbox"
_KINDS = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json"}
_BYTES = "application/octet-stream"


@dataclass(frozen=True)
class Files:
    """`places`: first part of a path → the folder that lies below it."""

    places: Mapping[str, Path]
    inbox: dict[str, bytes] = field(default_factory=dict)
    """Number → bytes of an array."""

    def fetch(self, address: str) -> tuple[bytes, str] | None:
        """The bytes that an address stands for, and their kind; None for everything that is not the page's to see.

        `?size` asks for their number instead, `?from=…&to=…` for a part of them.
        """
        parts = urlsplit(address)
        if f"{parts.scheme}://{parts.netloc}" != HOST:
            return None
        place, _, rest = unquote(parts.path).lstrip("/").partition("/")
        data = self.inbox.get(rest) if place == INBOX else _inside(self.places[place], rest) if place in self.places else None
        if data is None:
            return None
        size = data.stat().st_size if isinstance(data, Path) else len(data)
        asked = parse_qs(parts.query, keep_blank_values=True)
        if "size" in asked:
            return str(size).encode(), "text/plain"
        start, end = (int(asked[name][0]) if name in asked else usual for name, usual in (("from", 0), ("to", size)))
        if not isinstance(data, Path):
            return data[start:end], _BYTES
        with open(data, "rb") as file:
            file.seek(start)
            return file.read(end - start), _KINDS.get(data.suffix) or mimetypes.guess_type(data.name)[0] or _BYTES


def _inside(folder: Path, name: str) -> Path | None:
    """The regular file `name` of a folder; None where there is none, or where the name or a link leads out of it."""
    with contextlib.suppress(OSError, ValueError):
        path = Path(os.path.realpath(folder / name))
        if path.is_relative_to(os.path.realpath(folder)) and path.is_file():
            return path
    return None
