"""Names and versions of the files of a published export. Both wings and whoever reads an export rely on them."""

from __future__ import annotations

import json
from pathlib import Path

MANIFEST = "MANIFEST.json"
MANIFEST_VERSION = 1


def manifest_of(target: Path) -> dict[str, object]:
    """The manifest of a published export, {} where there is none."""
    try:
        value = json.loads((target / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
