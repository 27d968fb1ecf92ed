"""Remembers the strategy that worked for an architecture, so that it is tried first next time: one small JSON file in the folder that jobs
share.

Called by the onnx stage. It is only a hint: a file that can't be read or written is ignored, and if two jobs write at once, one entry is
lost. Free of torch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from daemon.contract.files import write_atomic
from daemon.contract.values import Frozen, Json

FILE = "onnx-history.json"
LIMIT = 500
"""Entries that are kept; the oldest go first."""


class PastExport(Frozen):
    """The result of the last export of an architecture."""

    strategy: str
    failed: dict[str, str] = Field(default_factory=dict)
    """Strategy → code of its diagnosis, for those that failed before the one that worked."""


class History:
    """The file's content."""

    def __init__(self, cache: Path) -> None:
        self._path = cache / FILE
        self._raw: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            value = json.loads(self._path.read_bytes())
            self._raw = value if isinstance(value, dict) else {}

    def get(self, key: str) -> PastExport | None:
        """The entry of a key, if there is one."""
        try:
            return PastExport.model_validate(self._raw.get(key))
        except ValidationError:
            return None

    def put(self, key: str, entry: PastExport) -> None:
        """Store an entry; a file that can't be written is ignored."""
        self._raw.pop(key, None)
        self._raw[key] = entry.model_dump()
        for old in list(self._raw)[:-LIMIT]:
            del self._raw[old]
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, json.dumps(self._raw, indent=1) + "\n")


def key_of(architecture: str, config: Json, opset: int, profile: str) -> str:
    """The key: what must be equal for an earlier success to be a useful hint (architecture and its variant, versions, opset, profile)."""
    rope = config.get("rope_parameters")
    features = [
        str(rope.get("rope_type", "")) if isinstance(rope, Mapping) else "",
        "window" if config.get("sliding_window") else "",
        ",".join(sorted({str(kind) for kind in config.get("layer_types") or ()})),
    ]
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers", "onnxscript")]
    return " | ".join([architecture, *filter(None, features), *versions, f"opset {opset}", profile])
