"""Atomic publication of an export: everything is put together beside the target, sealed, and renamed into place.

Called by `daemon.publishing.closing` after the last stage. Every step can be repeated: a crash anywhere leaves either the old
export or the new one at the target, and the next start ends the rest. The order is: files, folders, manifest, its
folder, the rename, the folder around the target, and only then does what was replaced go.

What a reader must do to see one export whole: open the export's folder once (`os.open` with O_DIRECTORY, or go into
it) and read everything relative to that handle, MANIFEST.json first. A reader that builds each path anew may get
files of the old export and of the new one. When an export is replaced while it is read through such a handle, its
files may end in "no such file", never in other content; open the folder again then.

Limits: where the file system can't exchange two names (`daemon.publishing.exchange.swap`), readers find nothing for the instant
between two renames. Only an export of ours is ever replaced, and of it only what `daemon.publishing.exchange.ours` knows is removed;
whatever else lies at the target is set aside under `NAME.before-ckptd-TIME`, since a refusal would block every later export on an
unattended machine because of one wrong folder.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon.contract import failpoints
from daemon.contract.errors import Permanent, Retryable
from daemon.contract.export_layout import MANIFEST, MANIFEST_VERSION, holds_exports, read_manifest
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import FileEntry, dead_temporaries, fsync_directory, make_folders, temporary_of, walk, write_atomic
from daemon.contract.placing import duplicate, hard_link, place
from daemon.contract.version import __version__
from daemon.publishing.access import Access, apply
from daemon.publishing.exchange.beneath import Spot, held_below
from daemon.publishing.exchange.ours import Looked, look, set_aside
from daemon.publishing.exchange.swap import complete_swap, remove_any, swap
from daemon.publishing.lending import is_as_lent
from daemon.system.private import inherited_umask


@dataclass(frozen=True)
class ExportPart:
    """The output of a stage: `folder` of the export it goes to ("" for the top), where it lies, its sealed files."""

    name: str
    source: Path
    files: tuple[FileEntry, ...]
    at: Path | None = None
    """A path to `source` that leads there whatever becomes of names."""

    @property
    def there(self) -> Path:
        """The path by which it is read."""
        return self.at or self.source


def assemble(
    parts: list[ExportPart], folder: Path, facts: Mapping[str, object], replaced: Path | None = None, access: Access | None = None
) -> None:  # fmt: skip
    """Put the parts together in the new folder `folder`, by hard link, with MANIFEST.json written last, readable as `access` says.

    A file that lies in another export is copied, but for one in `replaced`, whose place the new export takes: that one goes.
    Raises Retryable where a stage's output is gone, OSError where the file system refuses.
    """
    complete_swap(folder)
    remove_any(folder)  # after a crash it may be what the exchange brought back
    make_folders(folder)
    entries = []
    for part in parts:
        for entry in part.files:
            relative = f"{part.name}/{entry.path}" if part.name else entry.path
            _place(part, entry, folder / relative, replaced)
            entries.append({"path": relative, "size": entry.size, "sha256": entry.sha256})
        if not is_as_lent(part.there):
            raise _gone(part.source)
        failpoints.point("publish.part")
    for directory, _, _ in walk(folder, topdown=False):
        fsync_directory(Path(directory))
    failpoints.point("publish.assembled")
    manifest = {
        "manifest_version": MANIFEST_VERSION, "ckptd": __version__, **facts, "files": sorted(entries, key=lambda item: str(item["path"])),
    }  # fmt: skip
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    apply(folder, access or Access(0o666 & ~inherited_umask()))
    fsync_directory(folder)
    failpoints.point("publish.manifest")


def _place(part: ExportPart, entry: FileEntry, target: Path, replaced: Path | None) -> None:
    try:
        real = Path(os.path.realpath(part.there / entry.path, strict=True))
        if replaced is not None and Path(os.path.realpath(replaced)) in real.parents:
            if not hard_link(real, target):
                duplicate(real, target)
        else:
            place(real, target)
    except FileNotFoundError as error:
        raise _gone(part.source / entry.path) from error


def _gone(path: Path) -> Retryable:
    return Retryable(
        FaultCode.STAGE_OUTPUT_GONE, "put the export together", "the output of a finished stage no longer exists",
        "do not change output.directory while exports run; the stage is repeated", path=path,
    )  # fmt: skip


def swap_in(folder: Path, target: Path, top: Path | None = None) -> None:
    """Make `folder` the new `target`, below `top`; a reader sees the old export or the new one, whole. The old one is removed.

    No link is followed between `top` (by default the folder around `target`) and `target`. What lies at the target and is no export of
    ours is set aside, never destroyed. Raises Permanent where it holds exports of others, Retryable where it changes, OSError.
    """
    top = top or target.parent
    complete_swap(folder)
    with held_below(top, target.parent, make=True) as around:
        place = around.spot(target.name)
        put_in(folder, place, top, look(place.at, target, None))


def put_in(folder: Path, target: Spot, top: Path, looked: Looked | None) -> None:
    """As `swap_in`, in a folder below `top` that is held open; `looked`: what lay there when it was looked at."""
    if looked is not None and looked.known is None:
        _set_aside(target, looked)
        looked = None
    failpoints.point("publish.before-rename")
    swap(folder, target, top, looked)


def is_export(path: Path) -> bool:
    """Whether a real folder with a manifest of ours lies there. A link to one is no export, but somebody's link.

    Raises OSError where that can't be found out: what can't be read now is not for that reason somebody else's.
    """
    try:
        manifest = read_manifest(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return not path.is_symlink() and isinstance(manifest, dict) and "manifest_version" in manifest


def _set_aside(target: Spot, looked: Looked) -> None:
    """Rename what is not ours, so that its name is free and its content stays."""
    if not target.at.is_symlink() and holds_exports(target.at, itself=False):
        raise Permanent(
            FaultCode.TARGET_TAKEN, "publish the export", "the folder contains exports of another run, which would be moved with it",
            "move that folder away and run `ckptd retry` on the job, or run `ckptd export` on its checkpoint, which uses another folder",
            path=target.path,
        )  # fmt: skip
    if os.lstat(target.at).st_ino != looked.inode:
        raise Retryable(
            FaultCode.TARGET_TAKEN, "publish the export", "something else was put into its place while it was being published",
            "nothing; ckptd looks again and tries again", path=target.path,
        )  # fmt: skip
    set_aside(target.at, target, "what lay at the export's place is no export of this ckptd, or was changed; it was set aside")
    failpoints.point("publish.set-aside")


def link_to(link: Path, target: Path) -> None:
    """Point the symlink `link` at `target` (in the same folder or below), atomically. A real file there is left alone."""
    link_beside(Spot(link, link), target)


def link_beside(link: Spot, target: Path) -> None:
    """As `link_to`, in a folder that is held open."""
    if os.path.lexists(link.at) and not link.at.is_symlink():
        raise FileExistsError(errno.EEXIST, "is in the way of the symlink and was not made by ckptd", str(link.path))
    for left in dead_temporaries(link.at.parent):
        if left.name.startswith(f".{link.path.name}.") and left.is_symlink():
            left.unlink(missing_ok=True)
    temporary = temporary_of(link.at.with_name(f"{link.at.name}.{secrets.token_hex(4)}"))  # a name that nobody else has
    failpoints.point("publish.before-link")
    temporary.symlink_to(os.path.relpath(target, link.path.parent))
    failpoints.point("publish.link-made")
    os.replace(temporary, link.at)
    failpoints.point("publish.linked")
    fsync_directory(link.at.parent)
    failpoints.point("publish.link-durable")


def same_files(folder: Path, files: tuple[FileEntry, ...]) -> bool:
    """Whether a stage's output is still there with the sizes that were sealed."""
    try:
        return all((folder / entry.path).stat().st_size == entry.size for entry in files)
    except OSError:
        return False
