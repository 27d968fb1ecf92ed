"""A command that copies what it is told into a folder, as a person's would. What is known of the far end is the command's alone."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from tests.deliver.contract.site import Contents, Site

COPIES = """
import json, os, pathlib, shutil, sys
order, base = json.load(sys.stdin), pathlib.Path(sys.argv[1])
new, place = base / f".{os.getpid()}", base / order["version"]
for file in order["files"]:
    (new / file["path"]).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file["path"], new / file["path"])
place.exists() or new.rename(place)
print(place)
"""
_APPLY = {
    "chosen_variants_go_alone", "a_variant_that_is_missing_is_said", "a_source_that_changed_makes_nothing_visible",
    "a_look_changes_nothing", "an_export_of_many_small_files_arrives", "what_is_not_ours_stays",
}  # fmt: skip


class _Lacks(dict[str, str]):
    """All checks but those that apply: nothing moves, nothing is read back, listed or removed."""

    def __init__(self) -> None:
        from tests.deliver.contract.checks import CHECKS

        reason = "what lies there, and what people follow there, the command alone knows"
        super().__init__({check.name: reason for check in CHECKS if check.name not in _APPLY})


class SITE(Site):
    kind = "command"
    entry = "handlers.deliver.command.target:CommandTarget"
    counts: ClassVar[Literal["requests", "calls"]] = "calls"
    lacks: ClassVar[Mapping[str, str]] = _Lacks()

    def start(self) -> None:
        (self.folder / "models").mkdir()

    def options(self) -> dict[str, Any]:
        return {"command": [sys.executable, "-c", COPIES, str(self.folder / "models")]}

    def visible(self, run: str) -> Mapping[str, Contents]:
        folders = [folder for folder in (self.folder / "models").iterdir() if not folder.name.startswith((".", "foreign"))]
        return {
            folder.name: {
                str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()
            }
            for folder in folders
        }

    def current(self, run: str) -> str | None:
        return None

    def lay_foreign(self) -> None:
        (self.folder / "models/foreign-1-00000000").mkdir()

    def foreign_is_there(self) -> bool:
        return (self.folder / "models/foreign-1-00000000").is_dir()

    def stored(self) -> int:
        return sum(path.stat().st_size for path in (self.folder / "models").rglob("*") if path.is_file())
