"""Names and versions of the files of a published export. Both wings and whoever reads an export rely on them."""

from __future__ import annotations

MANIFEST = "MANIFEST.json"
MANIFEST_VERSION = 1
