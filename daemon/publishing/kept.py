"""Finished outputs that outlive their job, under their resume key: what a retry or a changed configuration need not repeat.

Filled by the runner when a job has ended, asked before a stage starts. It is a cache beside the exports: what an export has published costs
nothing, since the kept output only refers to it (`daemon.publishing.lending`) and is gone when the published file is another one; the
rest is bounded, and all of it goes first when the disk gets short.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from daemon.contract.disk import failpoints
from daemon.contract.disk.export_layout import README
from daemon.contract.disk.files import (
    FileEntry,
    exchange,
    files_below,
    fsync_directory,
    odd_below,
    remove_tree,
    sha256_file,
    temporary_of,
    write_atomic,
)  # fmt: skip
from daemon.contract.disk.own_folders import own
from daemon.contract.faults.errors import CkptdError, Fault, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.jobs.messages import StageResult, Verdict
from daemon.journal.rows import JobRow, StageRow
from daemon.publishing.exchange.ours import remove_any
from daemon.publishing.exchange.swap import NO_EXCHANGE
from daemon.publishing.lending import FILES, Inode, entry_of, is_as_lent, lent_in, record, replace_by_links, shared_below
from daemon.system.logger import Logger

log = Logger("runner")

RESULT = "result.json"
MOST = 256
"""Outputs that are kept at most: all of them are looked at whenever an export ends, and an export has a few."""


@dataclass(frozen=True)
class KeptFile:
    """A name of a regular file. `size`: bytes; `links`: all names that the file has, wherever they are."""

    inode: tuple[int, int]
    size: int
    links: int


@dataclass(frozen=True)
class CachedOutput:
    """One kept output. `used`: when it was last of use, epoch seconds."""

    key: str
    folder: Path
    files: tuple[KeptFile, ...]
    used: float


class OutputCache:
    """The kept outputs in `folder`, on the file system of the output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take_over(self, job: JobRow, stages: Mapping[str, StageRow], budget: int, in_use: Collection[Path]) -> Fault | None:
        """Keep the outputs of a job that has ended, and trim all of them; one that can't be kept costs a later job its time alone.

        An artifact that its check found to be wrong, and that check, are not kept: what is to be done then is to make it again.
        Gives what kept the latest of them from it.
        """
        refused: Fault | None = None
        left = {"report", *_rejected(stages)}
        for name, stage in stages.items():
            if name not in left and stage.key and stage.folder and stage.result and stage.result.reusable and stage.folder.is_dir():
                try:
                    self.keep(stage.key, stage.folder, stage.result)
                except (OSError, CkptdError) as error:
                    log.warning(
                        "an output could not be kept for later jobs", event_id=Event.KEPT_FAILED, job=job.id, stage=name, why=str(error)
                    )
                    known = error if isinstance(error, CkptdError) else from_oserror(error, f"keep the output of {name}", str(stage.folder))
                    refused = known.fault
        try:
            self.trim(budget, in_use)
        except (OSError, CkptdError) as error:
            log.warning(
                "kept outputs could not be trimmed; it is tried again after the next export", event_id=Event.KEPT_FAILED, job=job.id,
                why=str(error),
            )  # fmt: skip
        return refused

    def find(self, key: str) -> tuple[Path, StageResult] | None:
        """Folder and result of the output with this key; what is in it is still to be verified."""
        try:
            with self._held() as folder:
                entry = folder / key
                result = StageResult.model_validate_json((entry / RESULT).read_bytes())
                if not is_as_lent(entry / FILES):
                    remove_tree(entry)
                    return None
                _refer_to_export(entry)
                os.utime(entry)
        except (OSError, ValidationError):
            return None
        return self._folder / key / FILES, result

    def _held(self, *, make: bool = False) -> AbstractContextManager[Path]:
        """The folder, by a path that leads to it whatever becomes of its name. Raises Permanent where it is not ours, OSError."""
        return own(self._folder.parent.parent, self._folder, make=make)

    def keep(self, key: str, folder: Path, result: StageResult) -> None:
        """Take over the finished output in `folder`; a crash leaves it there, or here whole, or to be removed by `trim`.

        OSError where it can't be taken over; then nothing of it is here.
        """
        if folder.parent == self._folder / key:
            return  # it came from here
        output = self._folder.parent.parent
        top = output if output in folder.parents else folder.parent.parent  # a former configuration's
        with self._held(make=True) as kept, own(top, folder.parent) as around:
            entry, made = kept / key, around / folder.name
            remove_tree(entry)
            try:
                entry.mkdir(parents=True)
                _keep_lent(made, entry)
                failpoints.point("kept.lent")
                os.rename(made, entry / FILES)
                failpoints.point("kept.moved")
                _refer_to_export(entry)
                write_atomic(entry / RESULT, result.model_dump_json())
                fsync_directory(kept)
            except OSError:
                with contextlib.suppress(OSError):
                    remove_tree(entry)
                raise

    def drop(self, key: str) -> None:
        """Remove an output that is not what its result says."""
        with contextlib.suppress(FileNotFoundError), self._held() as folder:
            remove_tree(folder / key)

    def entries(self) -> list[CachedOutput]:
        """All outputs, those longest unused first."""
        folders = [path for path in self._folder.iterdir() if path.is_dir()] if self._folder.is_dir() else []
        outputs = [CachedOutput(path.name, path, tuple(_files(path / FILES)), path.stat().st_mtime) for path in folders]
        return sorted(outputs, key=lambda entry: entry.used)

    def trim(self, budget: int, in_use: Collection[Path]) -> list[str]:
        """Remove the longest unused outputs, till at most MOST are left that hold at most `budget` bytes of their own; gives the keys.
        Those that running jobs read, `in_use`, stay.

        Of their own is what has no name outside of the kept outputs; a file that several of them share counts once.
        """
        entries = self.entries()
        beyond = len(entries) - MOST
        names = Counter(file.inode for entry in entries for file in entry.files)
        own = {file.inode: file.size for entry in entries for file in entry.files if file.links <= names[file.inode]}
        held, gone = sum(own.values()), []
        for entry in entries:
            whole = (entry.folder / RESULT).is_file() and is_as_lent(entry.folder / FILES)
            if any(entry.folder in folder.parents for folder in in_use):
                continue
            if not whole or beyond > 0 or (held > budget and any(own.get(file.inode) for file in entry.files)):
                self.drop(entry.key)
                beyond -= 1
                names.subtract(file.inode for file in entry.files)
                held = sum(size for inode, size in own.items() if names[inode])
                gone.append(entry.key)
        if gone:
            log.info("removed kept outputs", event_id=Event.KEPT_REMOVED, keys=[key[:12] for key in gone])
        return gone


def lend_others(staging: Path, target: Path, kept: Path, pin: Path) -> None:
    """Leave the files of the published export `target` with one link: their names among kept outputs and in the pin become symlinks."""
    if published := shared_below([target]):
        _lend_kept(kept, {inode: (names[0], target) for inode, names in published.items()})
        pinned = shared_below([pin])
        replace_by_links([(name, published[inode][0]) for inode, names in pinned.items() if inode in published for name in names], staging)


def _lend_kept(kept: Path, published: Mapping[Inode, tuple[Path, Path]]) -> None:
    """Turn names of published files among the kept outputs into symlinks. `published`: inode → file and export."""
    for entry in [path for path in kept.iterdir() if path.is_dir()] if kept.is_dir() else []:
        names = [(name, *published[inode]) for inode, mine in shared_below([entry]).items() if inode in published for name in mine]
        if names:
            new = [entry_of(name.relative_to(entry), file, file.relative_to(export), os.stat(name)) for name, file, export in names]
            replaced = {lent.name for lent in new}
            record(entry, [*(lent for lent in lent_in(entry) if lent.name not in replaced), *new])
            failpoints.point("publish.kept-lending")
            replace_by_links([(name, file) for name, file, _ in names], entry)
            failpoints.point("publish.kept-lent")
            _refer_to_export(entry)


def is_whole(folder: Path, files: Iterable[FileEntry]) -> bool:
    """Whether an output still has exactly the bytes that were sealed: every file is read."""
    try:
        return all((folder / file.path).stat().st_size == file.size and sha256_file(folder / file.path) == file.sha256 for file in files)
    except OSError:
        return False


def _keep_lent(output: Path, entry: Path) -> None:
    """Write into the entry of a kept output what of it was lent while it lay in the staging folder as `output`."""
    lent = [name for name in lent_in(output.parent) if name.name.startswith(f"{output.name}/")]
    if lent:
        record(entry, [name.model_copy(update={"name": f"{FILES}/{name.name.removeprefix(f'{output.name}/')}"}) for name in lent])


def _refer_to_export(entry: Path) -> None:
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
    lent, homes = {name.name: name.at for name in lent_in(entry)}, set[str]()
    names = odd_below(entry / FILES)
    for name in names:
        at = lent.get(f"{FILES}/{name}", "")
        homes.add(at.removesuffix(f"/{name}") if at.endswith(f"/{name}") else "")
    if len(homes) != 1 or not (home := homes.pop()) or any(files_below(entry / FILES)):
        return None
    there = {path.relative_to(home).as_posix() for path in files_below(Path(home))}
    return Path(home) if {*names} <= there <= {*names, README} else None


def _rejected(stages: Mapping[str, StageRow]) -> Iterator[str]:
    """The stages of artifacts that failed by more than their precision, and those of their checks."""
    for name, stage in stages.items():
        for check in stage.result.checks if stage.result else ():
            if check.verdict is Verdict.FAILED and not check.of_precision:
                yield from (name, check.variant)


def _files(folder: Path) -> Iterator[KeptFile]:
    for path in files_below(folder) if folder.is_dir() and not folder.is_symlink() else ():
        status = os.lstat(path)
        yield KeptFile((status.st_dev, status.st_ino), status.st_size, status.st_nlink)
