"""A published file is a plain file with one link; what keeps its bytes for later jobs refers to it by a symlink.

Stage outputs and kept outputs share their bytes with the export without a second copy: the export has the file, they have a symlink to
it, and a record beside them (`lent.json`) says which file that was: inode, size and time. Whoever goes by a record asks `is_as_lent`
first: a published file that was replaced, removed or written into is no longer what was lent.

Called by `daemon.publishing.closing` around the rename of a publication: `lend_staged` before it, so that the file has one link the moment
it can be seen; `lend_others` after it, for names that others may read meanwhile and that must lead to the bytes at every instant. Between
the two a symlink of the staging folder leads nowhere; `take_back` gives these their bytes again after a crash or a failed rename.
An export that takes the place of another one with the same bytes shares the file with it until that one is removed.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import structlog
from pydantic import TypeAdapter, ValidationError

from daemon.contract import failpoints
from daemon.contract.events import Event
from daemon.contract.export_layout import README
from daemon.contract.files import exchange, files_below, fsync_directory, odd_below, remove_tree, temporary_of, write_atomic
from daemon.contract.placing import copy_access, duplicate
from daemon.contract.values import Frozen
from daemon.publishing.exchange.swap import NO_EXCHANGE, remove_any

log = structlog.get_logger("publish")

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
        found = _LIST.validate_json((folder / RECORD).read_bytes())
    except (OSError, ValidationError):
        return []
    return [one for one in found if (folder / one.name).is_symlink() or (folder / one.name.partition("/")[0]).is_symlink()]


def record(folder: Path, lent: Iterable[Lent]) -> None:
    """Write the record of `folder`, durable."""
    write_atomic(folder / RECORD, _LIST.dump_json(sorted(lent, key=lambda one: one.name)))


def is_as_lent(output: Path) -> bool:
    """Whether every published file that the output in the folder `output` refers to is still the one that was lent."""
    return all(one.is_at(Path(one.at)) for one in lent_in(output.parent) if one.name.startswith(f"{output.name}/"))


def lend_staged(staging: Path, target: Path, others: Sequence[Path]) -> None:
    """Leave the files of the export in `staging / "publish"` with one link, before it is renamed to `target`.

    Names of them elsewhere in `staging` become symlinks to where the files will lie. Of names below `others` (kept outputs, the pin) and in
    the export that is replaced is known that they go afterwards; where a file has any other name, or two in the export, it is copied. Does
    nothing where `target` is on another file system: the export is copied there. Raises OSError.
    """
    folder = staging / PUBLISH
    if os.stat(folder).st_dev != os.stat(target.parent).st_dev:
        return
    shared = _shared_below([folder])
    if not shared:
        return
    mine = _shared_below(path for path in staging.iterdir() if path != folder)
    known = Counter({inode: len(names) for inode, names in _shared_below([*others, target]).items()})
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
            lent.append(_entry(name.relative_to(staging), target / part, part, status))
            names.append((name, target / part))
    record(staging, lent)
    failpoints.point("publish.lending")
    _replace(names, staging)
    failpoints.point("publish.lent")


def lend_others(staging: Path, target: Path, kept: Path, pin: Path) -> None:
    """Leave the files of the published export `target` with one link: their names among kept outputs and in the pin become symlinks."""
    if published := _shared_below([target]):
        lend_kept(kept, {inode: (names[0], target) for inode, names in published.items()})
        pinned = _shared_below([pin])
        _replace([(name, published[inode][0]) for inode, names in pinned.items() if inode in published for name in names], staging)


def lend_kept(kept: Path, published: Mapping[Inode, tuple[Path, Path]]) -> None:
    """Turn names of published files among the kept outputs into symlinks. `published`: inode → file and export."""
    for entry in [path for path in kept.iterdir() if path.is_dir()] if kept.is_dir() else []:
        names = [(name, *published[inode]) for inode, found in _shared_below([entry]).items() if inode in published for name in found]
        if names:
            new = [_entry(name.relative_to(entry), file, file.relative_to(export), os.stat(name)) for name, file, export in names]
            replaced = {one.name for one in new}
            record(entry, [*(one for one in lent_in(entry) if one.name not in replaced), *new])
            failpoints.point("publish.kept-lending")
            _replace([(name, file) for name, file, _ in names], entry)
            failpoints.point("publish.kept-lent")
            refer_to_export(entry)


def take_back(staging: Path) -> None:
    """Give the names in a job's staging folder that lead nowhere, since their export was not renamed, the bytes again. Raises OSError."""
    for one in lent_in(staging):
        name, source = staging / one.name, staging / PUBLISH / one.part
        if not one.is_at(Path(one.at)) and one.is_at(source):
            temporary = temporary_of(staging / RECORD)
            temporary.unlink(missing_ok=True)
            os.link(source, temporary)
            failpoints.point("publish.taking-back")
            os.replace(temporary, name)
            fsync_directory(name.parent)


def take_all_back(staging: Path) -> None:
    """`take_back` for every job. Must be called at a start, after interrupted swaps were completed and before anything is removed."""
    for found in staging.glob(f"*/{RECORD}") if staging.is_dir() else ():
        take_back(found.parent)


def keep_lent(output: Path, entry: Path) -> None:
    """Write into the entry of a kept output what of it was lent while it lay in the staging folder as `output`."""
    lent = [one for one in lent_in(output.parent) if one.name.startswith(f"{output.name}/")]
    if lent:
        record(entry, [one.model_copy(update={"name": f"{FILES}/{one.name.removeprefix(f'{output.name}/')}"}) for one in lent])


def refer_to_export(entry: Path) -> None:
    """Where one folder of an export holds a whole kept output under the same names, refer to that folder by one symlink.

    Some readers refuse a file that is a symlink itself, such as ONNX's weights. Raises OSError.
    """
    files = entry / FILES
    home = None if files.is_symlink() else _home(entry)
    if home is None:
        return
    link, aside = (temporary_of(entry / name) for name in ("link", "aside"))
    link.unlink(missing_ok=True)
    link.symlink_to(home)
    try:
        exchange(files, link)
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
        remove_tree(aside)
        os.rename(files, aside)
        os.rename(link, files)
    fsync_directory(entry)
    failpoints.point("kept.referring")
    remove_any(link)
    remove_tree(aside)


def _home(entry: Path) -> Path | None:
    """The folder of an export that holds all of a kept output under the same names, and nothing else but a README; None where there is
    none."""
    lent, homes = {one.name: one.at for one in lent_in(entry)}, set[str]()
    names = odd_below(entry / FILES)
    for name in names:
        at = lent.get(f"{FILES}/{name}", "")
        homes.add(at.removesuffix(f"/{name}") if at.endswith(f"/{name}") else "")
    if len(homes) != 1 or not (home := homes.pop()) or any(files_below(entry / FILES)):
        return None
    there = {path.relative_to(home).as_posix() for path in files_below(Path(home))}
    return Path(home) if {*names} <= there <= {*names, README} else None


def _entry(name: Path, at: Path, part: Path, status: os.stat_result) -> Lent:
    return Lent(
        name=name.as_posix(), at=str(at), part=part.as_posix(), inode=status.st_ino, size=status.st_size, mtime_ns=status.st_mtime_ns
    )


def _shared_below(folders: Iterable[Path]) -> defaultdict[Inode, list[Path]]:
    """Inode → names, of the regular files below the folders that have more than one link; folders that aren't there are passed over."""
    found = defaultdict[Inode, list[Path]](list)
    for folder in folders:
        for path in files_below(folder) if folder.is_dir() and not folder.is_symlink() else ():
            status = os.lstat(path)
            if status.st_nlink > 1:
                found[status.st_dev, status.st_ino].append(path)
    return found


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


def _replace(names: Sequence[tuple[Path, Path]], beside: Path) -> None:
    """Turn names into symlinks, each at once, durable. What a crash may leave lies in the folder `beside`, where no stage reads."""
    temporary = temporary_of(beside / RECORD)
    for name, at in names:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(at)
        os.replace(temporary, name)
    for folder in {name.parent for name, _ in names}:
        fsync_directory(folder)
