"""Remembers the strategy that worked for an architecture, so that it is tried first next time.

Called by the onnx stage. It is only a hint (`handlers.child.hints`). Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from pydantic import Field, ValidationError

from daemon.contract.values import Frozen, Json
from handlers.child.hints import Hints

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
        self._hints = Hints(cache / FILE, LIMIT)

    def get(self, key: str) -> PastExport | None:
        """The entry of a key, if there is one."""
        try:
            return PastExport.model_validate(self._hints.get(key))
        except ValidationError:
            return None

    def put(self, key: str, entry: PastExport) -> None:
        """Store an entry."""
        self._hints.put({key: entry.model_dump()})


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
