"""What one job leaves for later ones, so that they need less time: small JSON files in the folder that jobs share.

A hint is never relied on: a file that can't be read or written is ignored, and if two jobs write at once, what one of them wrote is lost.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.contract.disk.files import write_atomic


class Hints:
    """The content of one file; `limit`: entries that are kept, of which the oldest go first."""

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._raw: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            value = json.loads(path.read_bytes())
            self._raw = value if isinstance(value, dict) else {}

    def get(self, key: str) -> Any:
        """The entry of a key as it was read; None where there is none."""
        return self._raw.get(key)

    def put(self, entries: Mapping[str, Any]) -> None:
        """Keep entries, as the newest ones."""
        for key, value in entries.items():
            self._raw.pop(key, None)
            self._raw[key] = value
        for old in list(self._raw)[: -self._limit]:
            del self._raw[old]
        with contextlib.suppress(OSError, RecursionError):  # the other entries are what was read
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, json.dumps(self._raw, indent=1) + "\n")
