"""Exports to publish: small trees of files whose every byte says which version they belong to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from daemon.contract import FileEntry
from daemon.durable import seal
from daemon.publish import MANIFEST, Part, assemble, swap_in

FILES = {"pytorch": ["config.json", "model.safetensors", "sub/extra.bin"], "": ["report.json", "README.md"]}


def parts(source: Path, version: int, files: dict[str, list[str]] = FILES) -> list[Part]:
    """Sealed outputs of stages below `source`; every file holds the version."""
    made = []
    for name, paths in files.items():
        folder = source / f"v{version}" / (name or "report")
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(f"{path} of version {version}\n" * 20)
        made.append(Part(name, folder, seal(folder)))
    return made


def publish(home: Path, version: int, target: Path, files: dict[str, list[str]] = FILES, **facts: object) -> None:
    """The whole way, from sealed stage outputs to the target."""
    assemble(parts(home / "sources", version, files), home / "staging" / "publish", {"version": version, **facts})
    swap_in(home / "staging" / "publish", target)


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def expected(files: dict[str, list[str]] = FILES) -> list[str]:
    return sorted([MANIFEST, *(f"{name}/{path}" if name else path for name, paths in files.items() for path in paths)])


def version_of(folder: Path) -> int:
    """The version in the manifest, after every file was compared with it."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    entries = [FileEntry(**entry) for entry in manifest["files"]]
    assert [entry.path for entry in entries] == [path for path in listing(folder) if path != MANIFEST]
    for entry in entries:
        content = (folder / entry.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.size, entry.sha256)
        assert f"of version {manifest['version']}\n".encode() in content
    return int(manifest["version"])
