"""A folder as a store, read by its manifests."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.deliver.contract.site import Contents, Site


def folder_of(run: str) -> str:
    """The folder in which a run's versions lie."""
    plain = re.sub(r"(?:[^A-Za-z0-9_.]|\.\.+)+", "-", run).strip("-.")
    return run if plain == run and len(run) <= 80 else f"{plain[:80] or 'run'}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


class SITE(Site):
    kind = "store"
    entry = "handlers.deliver.store.target:Store"
    counts: ClassVar[Literal["requests", "calls"]] = "calls"

    @property
    def base(self) -> Path:
        return self.folder / "store"

    def start(self) -> None:
        self.base.mkdir()

    def options(self) -> dict[str, Any]:
        return {"url": f"file://{self.base}"}

    def visible(self, run: str) -> Mapping[str, Contents]:
        """What lies in folders, under names that are not hidden; a folder must be whole when it has that name."""
        run, seen = folder_of(run), {}
        for version in (self.base / run).iterdir() if (self.base / run).is_dir() else ():
            if not version.is_dir() or version.name.startswith((".", "foreign")):
                continue
            files = [path for path in version.rglob("*") if path.is_file() and path.name != "MANIFEST.json"]
            seen[f"{run}/{version.name}"] = {
                str(path.relative_to(version)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
            }
        return seen

    def current(self, run: str) -> str | None:
        path = self.base / folder_of(run) / "latest.json"
        return f"{folder_of(run)}/{json.loads(path.read_bytes())['version']}" if path.is_file() else None

    def move_by_hand(self, run: str, version: str) -> None:
        folder = self.base / version
        manifest = json.loads((folder / "MANIFEST.json").read_bytes())
        latest = {"version": folder.name, "run": run, "step": manifest["step"], "path": f"{folder.name}/"}
        (folder.parent / "latest.json").write_text(json.dumps(latest))

    def lay_foreign(self) -> None:
        folder = self.base / "run-a/foreign-1-00000000"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"a person's")
        (folder / "MANIFEST.json").write_text(json.dumps({"run": "run-a", "step": 1, "files": []}))

    def foreign_is_there(self) -> bool:
        return (self.base / "run-a/foreign-1-00000000/model.onnx").is_file()

    def leftovers(self) -> list[str]:
        """Hidden names but for the lock, and what says that a version is brought."""
        hidden = [path for path in self.base.rglob("*") if path.name.startswith(".") and path.name not in (".lock", ".begun")]
        return [str(path) for path in (*hidden, *self.base.glob("*/.begun/*.json"))]

    def stored(self) -> int:
        files = {os.stat(path).st_ino: os.stat(path).st_size for path in self.base.rglob("*") if path.is_file()}
        return sum(files.values())
