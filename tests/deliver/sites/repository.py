"""A model repository with a folder a version, as programs over onnxruntime-genai load it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tests.deliver.contract.site import Contents, Site
from tests.deliver.exports import Export
from tests.deliver.servers.answering import left_on

OWN = ".ckptd.json"


class SITE(Site):
    kind = "repository"
    entry = "handlers.deliver.repository.target:Repository"
    weights = "onnx/model.onnx"
    counts: ClassVar[Literal["requests", "calls"]] = "calls"
    lacks: ClassVar[Mapping[str, str]] = {
        "chosen_variants_go_alone": "a server's folder has one variant whatever is chosen, and nothing of the export's top",
    }

    def start(self) -> None:
        (self.folder / "models").mkdir()

    def options(self) -> dict[str, Any]:
        return {"folder": str(self.folder / "models"), "layout": "genai"}

    @staticmethod
    def model(run: str) -> str:
        plain = re.sub(r"[^A-Za-z0-9_]+", "-", run).strip("-")
        return run if plain == run and len(run) <= 50 else f"{plain[:50] or 'run'}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"

    def visible(self, run: str) -> Mapping[str, Contents]:
        folder, seen = self.folder / "models" / self.model(run), {}
        for version in folder.iterdir() if folder.is_dir() else ():
            if version.is_symlink() or "foreign" in version.name:
                continue
            files = [path for path in version.rglob("*") if path.is_file() and path.name != OWN]
            contents = {f"onnx/{path.relative_to(version)}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
            if version.is_dir():  # it may have been taken away meanwhile
                seen[f"{folder.name}/{version.name}"] = contents
        return seen

    def expected(self, export: Export, variants: tuple[str, ...] = ()) -> Contents:
        return {path: digest for path, digest in export.digests.items() if path.startswith("onnx/")}

    def carried(self, export: Export) -> int:
        return sum((export.folder / path).stat().st_size for path in self.expected(export))

    def current(self, run: str) -> str | None:
        link = self.folder / "models" / self.model(run) / "latest"
        return f"{self.model(run)}/{os.readlink(link)}" if link.is_symlink() else None

    def move_by_hand(self, run: str, version: str) -> None:
        link = self.folder / "models" / self.model(run) / "latest"
        link.unlink(missing_ok=True)
        link.symlink_to(version.partition("/")[2])

    def lay_foreign(self) -> None:
        folder = self.folder / "models/run-a/foreign-1-00000000"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"a person's")
        (folder / OWN).write_text(json.dumps(["a", "person's"]))

    def foreign_is_there(self) -> bool:
        return (self.folder / "models/run-a/foreign-1-00000000/model.onnx").is_file()

    def leftovers(self) -> list[str]:
        """Beside the repository, where versions are put together, and names in it that hide."""
        hidden = [str(path) for path in (self.folder / "models").rglob(".*") if path.name != OWN]
        beside = [path for path in self.folder.glob(".*") if path.is_dir()]
        assert beside, "versions are put together elsewhere"
        return [*hidden, *(left for folder in beside for left in (*left_on(folder), *map(str, folder.glob("*-[0-9]*-*"))))]

    def stored(self) -> int:
        files = {os.stat(path).st_ino: os.stat(path).st_size for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink()}
        return sum(files.values())
