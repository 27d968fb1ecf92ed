"""A published file is a plain file with one link; what keeps its bytes for later jobs refers to it by a symlink.

Stage outputs and kept outputs share their bytes with the export without a second copy: the export has the file, they have a symlink to
it, and a record beside them (`lent.json`) says which file that was: inode, size and time. Whoever goes by a record asks `is_as_lent`
first: a published file that was replaced, removed or written into is no longer what was lent.

Called by `daemon.publishing.publication` around the rename of a publication: `lend_staged` before it, so that the file has one link the
moment it can be seen; `lend_others` (`daemon.publishing.kept`) after it, for names that others may read meanwhile and that must lead to the
bytes at every instant. Between the two a symlink of the staging folder leads nowhere; `take_back` gives these their bytes again after a
crash or a failed rename. An export that takes the place of another one with the same bytes shares the file with it until that one is
removed.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import FileEntry, files_below, fsync_directory, temporary_of, write_atomic
from daemon.contract.disk.placing import copy_access, duplicate
from daemon.contract.faults.events import Event
from daemon.contract.values import Frozen
from daemon.journal.rows import StageRow
from daemon.system.logger import Logger

log = Logger("publish")

RECORD = "lent.json"
"""Beside what has symlinks into an export: a job's staging folder, the entry of a kept output."""
FILES = "files"
"""Name of the output in the entry of a kept output."""
PUBLISH = "publish"
"""Name of the folder in a job's staging folder in which its export is put together."""
Inode = tuple[int, int]
"""Device and number."""


class Lent(Frozen):
    """A name that leads to a published file."""

    name: str
    """Relative to the folder of the record."""
    at: str
    """Path of the published file."""
    part: str
    """The same, relative to the export."""
    inode: int
    size: int
    mtime_ns: int

    def is_at(self, path: Path) -> bool:
        """Whether the very file lies at `path`, with no other time or size."""
        try:
            status = os.stat(path)
        except OSError:
            return False
        return (status.st_ino, status.st_size, status.st_mtime_ns) == (self.inode, self.size, self.mtime_ns)


_LIST = TypeAdapter(list[Lent])


def lent_in(folder: Path) -> list[Lent]:
    """What the record in `folder` says of names that are symlinks; [] where there is none, or none that can be read.

    The record is written first, so that after a crash it may name files that were not replaced yet: these need nobody's bytes.
    """
    try:
        recorded = _LIST.validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return []
    return [lent for lent in recorded if (folder / lent.name).is_symlink() or (folder / lent.name.partition("/")[0]).is_symlink()]


def record(folder: Path, lent: Iterable[Lent]) -> None:
    """Write the record of `folder`, durable."""
    write_atomic(folder / RECORD, _LIST.dump_json(sorted(lent, key=lambda name: name.name)))


def is_as_lent(output: Path) -> bool:
    """Whether every published file that the output in the folder `output` refers to is still the one that was lent."""
    return all(lent.is_at(Path(lent.at)) for lent in lent_in(output.parent) if lent.name.startswith(f"{output.name}/"))


def same_files(folder: Path, files: tuple[FileEntry, ...]) -> bool:
    """Whether a stage's output is still there with the sizes that were sealed."""
    try:
        return all((folder / entry.path).stat().st_size == entry.size for entry in files)
    except OSError:
        return False


def is_there(stage: StageRow) -> bool:
    """Whether the output of a finished stage is still there as it was sealed and lent; no file is read."""
    return bool(stage.folder and stage.result and same_files(stage.folder, stage.result.files) and is_as_lent(stage.folder))


def lend_staged(staging: Path, target: Path, others: Sequence[Path]) -> None:
    """Leave the files of the export in `staging / "publish"` with one link, before it is renamed to `target`.

    Names of them elsewhere in `staging` become symlinks to where the files will lie. Of names below `others` (kept outputs, the pin) and in
    the export that is replaced is known that they go afterwards; where a file has any other name, or two in the export, it is copied. Does
    nothing where `target` is on another file system: the export is copied there. Raises OSError.
    """
    folder = staging / PUBLISH
    if os.stat(folder).st_dev != os.stat(target.parent).st_dev:
        return
    shared = shared_below([folder])
    if not shared:
        return
    mine = shared_below(path for path in staging.iterdir() if path != folder)
    known = Counter({inode: len(names) for inode, names in shared_below([*others, target]).items()})
    lent, names = lent_in(staging), list[tuple[Path, Path]]()
    for inode, (first, *more) in shared.items():
        for path in more:
            _part(path, "the same file is in the export twice")
        status = os.stat(first)
        if status.st_nlink > 1 + len(mine[inode]) + known[inode]:
            _part(first, "the file has a name that is not ours")
            continue
        part = first.relative_to(folder)
        for name in mine[inode]:
            lent.append(entry_of(name.relative_to(staging), target / part, part, status))
            names.append((name, target / part))
    record(staging, lent)
    failpoints.point("publish.lending")
    replace_by_links(names, staging)
    failpoints.point("publish.lent")


def take_back(staging: Path) -> None:
    """Give the names in a job's staging folder that lead nowhere, since their export was not renamed, the bytes again. Raises OSError."""
    for lent in lent_in(staging):
        name, source = staging / lent.name, staging / PUBLISH / lent.part
        if not lent.is_at(Path(lent.at)) and lent.is_at(source):
            temporary = temporary_of(staging / RECORD)
            temporary.unlink(missing_ok=True)
            os.link(source, temporary)
            failpoints.point("publish.taking-back")
            os.replace(temporary, name)
            fsync_directory(name.parent)


def take_all_back(staging: Path) -> None:
    """`take_back` for every job. Must be called at a start, after interrupted swaps were completed and before anything is removed."""
    for path in staging.glob(f"*/{RECORD}") if staging.is_dir() else ():
        take_back(path.parent)


def entry_of(name: Path, at: Path, part: Path, status: os.stat_result) -> Lent:
    """What the record says of a name that leads to the published file `at`, which has the status `status`."""
    return Lent(
        name=name.as_posix(), at=str(at), part=part.as_posix(), inode=status.st_ino, size=status.st_size, mtime_ns=status.st_mtime_ns
    )


def shared_below(folders: Iterable[Path]) -> defaultdict[Inode, list[Path]]:
    """Inode → names, of the regular files below the folders that have more than one link; folders that aren't there are passed over."""
    names = defaultdict[Inode, list[Path]](list)
    for folder in folders:
        for path in files_below(folder) if folder.is_dir() and not folder.is_symlink() else ():
            status = os.lstat(path)
            if status.st_nlink > 1:
                names[status.st_dev, status.st_ino].append(path)
    return names


def _part(path: Path, why: str) -> None:
    """Give `path` a file of its own."""
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)
    try:
        how = duplicate(path, temporary)
        copy_access(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)
    log.info("a published file was copied, so that it is one of its own", event_id=Event.PUBLISH_COPIED, path=str(path), why=why, how=how)


def replace_by_links(names: Sequence[tuple[Path, Path]], beside: Path) -> None:
    """Turn names into symlinks, each at once, durable. What a crash may leave lies in the folder `beside`, where no stage reads."""
    temporary = temporary_of(beside / RECORD)
    for name, at in names:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(at)
        os.replace(temporary, name)
    for folder in {name.parent for name, _ in names}:
        fsync_directory(folder)
