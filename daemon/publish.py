"""Atomic publication of an export: everything is put together beside the target, sealed, and renamed into place.

Called by the runner after the last stage. Every step can be repeated: a crash anywhere leaves either the old
export or the new one at the target, and the next start ends the rest.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon import __version__, faults
from daemon.contract import FileEntry
from daemon.durable import exchange, fsync_directory, place, remove_tree, write_atomic

MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class Part:
    """The output of a stage: `folder` of the export it goes to ("" for the top), where it lies, its sealed files."""

    name: str
    source: Path
    files: tuple[FileEntry, ...]


def assemble(parts: list[Part], folder: Path, facts: Mapping[str, object]) -> None:
    """Put the parts together in the new folder `folder`, by hard link, with MANIFEST.json written last."""
    _remove(folder)  # after a crash it may be what the exchange brought back, even a file or a link
    folder.mkdir(parents=True)
    entries = []
    for part in parts:
        for entry in part.files:
            relative = f"{part.name}/{entry.path}" if part.name else entry.path
            place(part.source / entry.path, folder / relative)
            entries.append({"path": relative, "size": entry.size, "sha256": entry.sha256})
    for directory, _, _ in os.walk(folder):
        fsync_directory(Path(directory))
    faults.point("publish.assembled")
    manifest = {"manifest_version": 1, "ckptd": __version__, **facts, "files": sorted(entries, key=lambda item: str(item["path"]))}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    faults.point("publish.manifest")


def swap_in(folder: Path, target: Path) -> None:
    """Make `folder` the new `target`; a reader sees the old one or the new one, whole. The old one is removed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(folder, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        exchange(folder, target)
        faults.point("publish.exchanged")
        _remove(folder)
    faults.point("publish.renamed")
    fsync_directory(target.parent)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def link_to(link: Path, target: Path) -> None:
    """Point the symlink `link` at `target` (in the same folder or below), atomically. A real file there is left alone."""
    if link.exists() and not link.is_symlink():
        raise FileExistsError(errno.EEXIST, "is in the way of the symlink and was not made by ckptd", str(link))
    temporary = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    temporary.symlink_to(os.path.relpath(target, link.parent))
    os.replace(temporary, link)
    fsync_directory(link.parent)


def manifest_of(target: Path) -> dict[str, object]:
    """The manifest of a published export, {} where there is none."""
    try:
        value = json.loads((target / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def same_files(folder: Path, files: tuple[FileEntry, ...]) -> bool:
    """Whether a stage's output is still there with the sizes that were sealed."""
    try:
        return all((folder / entry.path).stat().st_size == entry.size for entry in files)
    except OSError:
        return False
