"""Exports for `ckptd bench`: real artifacts in a folder with a manifest, as publication leaves them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MADE = {"export_id": "pico-4-0123456789ab", "status": "succeeded", "run": "pico", "step": 4}


def publish(target: Path, variants: Mapping[str, Path], rejected: Mapping[str, str] | None = None) -> Path:
    """An export with these variants, whose files are copies. `rejected`: variant → why the report says that it was not published."""
    target.mkdir(parents=True)
    for name, folder in variants.items():
        shutil.copytree(folder, target / name)
    rows: list[dict[str, Any]] = [{"variant": name, "reasons": []} for name in variants]
    rows += [{"variant": name, "reasons": [why]} for name, why in (rejected or {}).items()]
    (target / "report.json").write_text(json.dumps({"artifacts": rows}))
    seal(target)
    return target


def seal(target: Path) -> None:
    """Write the manifest of what lies in an export."""
    paths = sorted(path for path in target.rglob("*") if path.is_file() and path.name != "MANIFEST.json")
    files = [{"path": path.relative_to(target).as_posix(), "size": path.stat().st_size, "sha256": "0" * 64} for path in paths]
    (target / "MANIFEST.json").write_text(json.dumps({"manifest_version": 1, **MADE, "files": files}))
