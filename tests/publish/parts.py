"""Exports to publish: small trees of files whose every byte says which version they belong to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.disk.files import FileEntry, seal
from daemon.publishing.exchange.beneath import Spot, held_below
from daemon.publishing.exchange.ours import look
from daemon.publishing.exchange.swap import start_afresh, swap
from daemon.publishing.links import link_to
from daemon.publishing.publication import ExportPart, assemble

FILES = {"pytorch": ["config.json", "model.safetensors", "sub/extra.bin"], "": ["report.json", "README.md"]}


def parts(source: Path, version: int, files: dict[str, list[str]] = FILES) -> list[ExportPart]:
    """Sealed outputs of stages below `source`; every file holds the version."""
    made = []
    for name, paths in files.items():
        folder = source / f"v{version}" / (name or "report")
        for path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(f"{path} of version {version}\n" * 20)
        made.append(ExportPart(name, folder, seal(folder)))
    return made


def publish(home: Path, version: int, target: Path, files: dict[str, list[str]] = FILES, **facts: object) -> None:
    """The whole way, from sealed stage outputs to the target."""
    start_afresh(home / "staging" / "publish")
    assemble(parts(home / "sources", version, files), home / "staging" / "publish", {"version": version, **facts})
    swap_in(home / "staging" / "publish", target)


def swap_in(folder: Path, target: Path) -> None:
    """Make `folder` the new `target`, which is looked at first."""
    with held_below(target.parent, target.parent, make=True) as around:
        spot = around.spot(target.name)
        swap(folder, spot, target.parent, look(spot.at, target, None))


def link(link: Path, target: Path) -> None:
    """Point the symlink `link` at `target`."""
    link_to(Spot(link, link), target)


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


def put_in_the_way(home: Path, target: Path, before: str) -> None:
    """Put what `before` names at the target: "an export…", "a file", "a link", "a folder of a person", "empty folder", or nothing."""
    if before.startswith("an export"):
        publish(home, 1, target)
    elif before != "nothing":
        target.parent.mkdir(parents=True)
    if before == "a file":
        target.write_text("in the way")
    elif before == "a link":
        (home / "kept").mkdir()
        (home / "kept" / "precious").write_text("in the way")
        target.symlink_to(home / "kept")
    elif before.endswith("folder"):
        target.mkdir()
    elif before == "a folder of a person":
        target.mkdir()
        (target / "precious").write_text("in the way")


def set_aside(target: Path) -> list[str]:
    """What the things hold that were set aside, whatever they are."""
    found = sorted(target.parent.glob(f"{target.name}.before-ckptd-*"))
    return [(path / "precious" if path.is_dir() else path).read_text() for path in found]
