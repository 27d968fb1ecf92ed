"""A pin: the snapshot of a checkpoint's files that rotation cannot take away.

Made by the watcher the moment a checkpoint is complete. Reflink where the file system has it; else small files
are copied, since an in-place rewrite would reach through a hard link; large ones are hard-linked, and the
fingerprint taken again afterwards shows whether the trainer moved meanwhile. What was linked is listed in the
pin with its state, so that a later rewrite is noticed (`rewritten`) before its bytes are believed. What the checkpoint
holds beside that is listed by name, so that a report can say what was left behind when the checkpoint is gone. A whole
model's weights beside an adapter, with which its merge is compared, have a folder of their own in the pin where that costs no copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.checkpoints.files import ADAPTER_CONFIG, TRAINER_STATE, Fingerprint, fingerprint, look_at
from daemon.config.places.paths import Paths
from daemon.contract import units
from daemon.contract.disk import failpoints
from daemon.contract.disk.files import clone, fsync_directory, fsync_file, remove_tree, sha256_file, write_atomic
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import BESIDE, BESIDE_STATES
from daemon.system.box import free_disk
from daemon.system.filesystems.disks import LEAST_INODES, free_inodes
from daemon.system.processes.seats import SEATS

if TYPE_CHECKING:
    from daemon.config.settings import PinSettings

COPY_LIMIT = 1 << 30
"""Files up to this many bytes are copied where they can't be reflinked."""
LINKED = ".linked"
"""File of a pin that lists its hard-linked files: name, inode, size, mtime in ns. No name that an export reads."""
LEFT_OUT = ".left-out"
"""File of a pin that lists what lies at the checkpoint's top and was not pinned: names in order, those of folders with a `/` at the end."""
ACCESS = ".access"
"""File of a pin that says it: [path, mode, group] of the files, one for each mode and group. No name that an export reads."""
MOST_LEFT_OUT = 1000
"""Names in it; a run's own directory may hold anything."""


@contextlib.contextmanager
def held(lock: Path, patience: float | None = None) -> Iterator[bool]:
    """Keep others from removing or replacing pins of ended jobs (`Paths.pins_lock`); gives whether the lock could be had.

    Whoever pins a large checkpoint again holds it for as long as that takes. `patience`: seconds to wait at most; None waits for it.
    """
    with open(lock, "a", encoding="utf-8") as stream:
        end = None if patience is None else time.monotonic() + patience
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | (0 if end is None else fcntl.LOCK_NB))
            except BlockingIOError:
                if end is not None and time.monotonic() >= end:
                    yield False
                    return
                time.sleep(0.02)
            else:
                yield True
                return


_SAFETENSORS, _OF_LIBRARY = ".safetensors", 0o600
"""Files whose mode is their library's, and that mode."""


@dataclass(frozen=True)
class SourceMode:
    """The mode of a file, without the read bits of those who can't reach it through its folders, and the id of its group."""

    path: str
    mode: int
    group: int


class Moved(Exception):
    """The checkpoint changed or vanished while it was pinned: look again."""


@dataclass(frozen=True)
class PinRules:
    """How files come into a pin. `reserve`: bytes of free disk that copies leave alone."""

    copy_limit: int = COPY_LIMIT
    reserve: int = 0


def pins_of(settings: PinSettings, paths: Paths) -> Path:
    """The folder of all pins of this journal."""
    return settings.directory / f"ckptd-pins-{paths.instance}" if settings.directory else paths.pins


def make_pin(
    checkpoint: Path, target: Path, expected: Fingerprint, rules: PinRules | None = None, borrowed: Collection[Path] = (),
    top: Path | None = None,
) -> None:  # fmt: skip
    """Snapshot the export files of `checkpoint`, and those that it borrows from its run's directory, into the new folder `target`.

    `top`: the folder above it, a root, from which on its folders count for who may read it; by default it alone.
    Raises, leaving nothing behind: Moved unless the files still have the fingerprint `expected` afterwards,
    Retryable where a copy would take what `limits.disk_reserve` keeps, OSError where permission or room is lacking.
    """
    rules = rules or PinRules()
    remove_tree(target)
    target.mkdir(parents=True)
    target.chmod(0o700)  # as private as the most private of its files, wherever pin.directory is
    try:
        look = look_at(checkpoint)
        copies = _Copies(rules)
        linked = [name for name in sorted(look.names) if copies.snapshot(checkpoint / name, target / name)]
        beside = sorted(name for name in look.beside if not name.endswith(".json"))
        if beside:
            _link_beside(checkpoint, target / BESIDE, beside)
        if fingerprint(checkpoint) != expected:
            raise Moved
        for path in borrowed:
            shutil.copyfile(path, target / path.name)
        if linked:
            (target / LINKED).write_text(json.dumps([row for row in expected if row[0] in linked]), encoding="utf-8")
        if beside:
            write_atomic(target / BESIDE / BESIDE_STATES, json.dumps([row for row in expected if row[0] in beside]))
        _remember_modes(target, [*(checkpoint / name for name in (*sorted(look.names), *beside)), *borrowed], top or checkpoint)
        if left := _left_out(checkpoint, {name.partition("/")[0] for name in look.names}):
            (target / LEFT_OUT).write_text(json.dumps(left), encoding="utf-8")
        names = {*look.names, *(path.name for path in borrowed), ACCESS, *([LINKED] if linked else []), *([LEFT_OUT] if left else [])}
        with SEATS.left():
            for name in sorted(names):
                fsync_file(f"{target}/{name}")
            for folder in {target, *((target / name).parent for name in names if "/" in name)}:
                fsync_directory(folder)  # once for all its names: nobody reads this pin before it has a job's name
        failpoints.point("pin.made")
    except FileNotFoundError as error:
        remove_tree(target)
        raise Moved from error
    except BaseException:
        remove_tree(target)
        raise


def identify(pin: Path) -> str:
    """Digest of the names and contents of the pinned files. What training merely logged is no part of it.

    Nor is a config.json beside an adapter: axolotl and torchtune write one, the base's counts, and it only tells a tokenizer its model.
    """
    digest, names = hashlib.sha256(), look_at(pin).names
    left_out = {TRAINER_STATE, "config.json"} if ADAPTER_CONFIG in names else {TRAINER_STATE}
    for name in sorted(names - left_out):
        digest.update(f"{name}\0{sha256_file(pin / name)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def rewritten(pin: Path) -> str | None:
    """Name of a hard-linked file that is no longer what was pinned, since the trainer wrote into it; None where all are."""
    try:
        states = json.loads((pin / LINKED).read_bytes())
    except FileNotFoundError:
        return None
    for name, *state in states:
        try:
            status = os.stat(pin / name)
        except FileNotFoundError:
            return str(name)
        if state != [status.st_ino, status.st_size, status.st_mtime_ns]:
            return str(name)
    return None


def mode_of(file: Path, top: Path, through: dict[Path, int] | None = None) -> SourceMode | None:
    """The mode of a file as far as it can be reached from `top`, a folder above it; None where it is gone.

    `through`: what is known of folders already, and is filled, where many files are asked for.
    """
    try:
        status = os.stat(file)
        through = {} if through is None else through
        if file.parent not in through:
            through[file.parent] = _way_to(file.parent, top)
    except OSError:
        return None
    return SourceMode(str(file), status.st_mode & 0o777 & through[file.parent], status.st_gid)


def _way_to(folder: Path, top: Path) -> int:
    """The permission bits that the folders leave to a file in `folder`."""
    mode = 0o777
    for above in (folder, *folder.parents):
        through = os.stat(above).st_mode
        mode &= ~0o070 if not through & 0o010 else ~0
        mode &= ~0o007 if not through & 0o001 else ~0
        if above == top or top not in above.parents:
            break
    return mode


def modes_of(files: Iterable[Path], top: Path) -> list[SourceMode]:
    """The modes of these files, without those that are gone.

    safetensors writes every file with the mode 0600, whatever the umask (safetensors#782, from 0.8 on), so that this mode says nothing of
    who may read a training: such a file counts as what was written beside it by other means. Alone it counts as it is.
    """
    through = dict[Path, int]()
    known = [(file, mode) for file in files if (mode := mode_of(file, top, through)) is not None]
    beside: dict[Path, int] = {}
    for file, mode in known:
        if file.suffix != _SAFETENSORS:
            beside[file.parent] = beside.get(file.parent, 0o777) & mode.mode
    return [
        replace(mode, mode=beside.get(file.parent, mode.mode)) if file.suffix == _SAFETENSORS and mode.mode == _OF_LIBRARY else mode
        for file, mode in known
    ]


def read_modes(pin: Path) -> list[SourceMode]:
    """Return who could read the files when they were pinned; [] where that is not known."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return [SourceMode(str(path), int(mode), int(group)) for path, mode, group in json.loads((pin / ACCESS).read_bytes())]
    return []


def _link_beside(checkpoint: Path, folder: Path, names: Collection[str]) -> None:
    """Keep these weights from rotation where that costs no copy; elsewhere they are looked for at the checkpoint's own place."""
    folder.mkdir()
    for name in names:
        with contextlib.suppress(PermissionError):
            if not clone(checkpoint / name, folder / name):
                with contextlib.suppress(OSError):
                    os.link(checkpoint / name, folder / name)


def _left_out(checkpoint: Path, pinned: Collection[str]) -> list[str]:
    with os.scandir(checkpoint) as entries:
        others = (entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries if entry.name not in pinned)
        return sorted(itertools.islice(others, MOST_LEFT_OUT))


class _Copies:
    """Puts the files of one checkpoint into its pin."""

    def __init__(self, rules: PinRules) -> None:
        self._rules = rules
        self._folders = set[Path]()
        """Those of the pin that are there."""
        self._plain = set[Path]()
        """Those into which a file could not be reflinked: to try it with each costs two opened files and a name."""
        self._counted = set[Path]()
        """Those whose file system has inodes left."""

    def snapshot(self, source: Path, target: Path) -> bool:
        """Put one file into the pin; says whether it shares its bytes with the trainer's."""
        rules, folder = self._rules, target.parent
        if folder not in self._folders:
            folder.mkdir(parents=True, exist_ok=True)
            self._folders.add(folder)
        if folder not in self._plain:
            if clone(source, target):
                return False
            self._plain.add(folder)
        size = source.stat().st_size
        if size > rules.copy_limit:
            try:
                os.link(source, target)
                return True
            except OSError:
                pass  # another file system, or another user's file: the copy below is always right
        free = free_disk(target.parent)
        if free - size < rules.reserve:
            raise Retryable(
                FaultCode.DISK_NOW, "pin the checkpoint",
                f"{source.name} needs {units.size(size)}, {units.size(free)} are free and limits.disk_reserve reserves"
                f" {units.size(rules.reserve)}",
                "free space there, set pin.directory to a larger disk or to the checkpoint's disk, or lower limits.disk_reserve",
                path=target.parent,
            )  # fmt: skip
        if folder not in self._counted:
            inodes = free_inodes(folder)
            if inodes is not None and inodes < LEAST_INODES:
                raise Retryable(
                    FaultCode.DISK_NOW, "pin the checkpoint",
                    f"its file system has {inodes} free inodes, and {LEAST_INODES} are needed: it has too many files",
                    "delete files there, or set pin.directory to another disk", path=folder,
                )  # fmt: skip
            self._counted.add(folder)
        shutil.copyfile(source, target)
        return False


def _remember_modes(pin: Path, files: Iterable[Path], top: Path) -> None:
    """Write the modes of the files that were pinned into the pin."""
    modes: dict[tuple[int, int], SourceMode] = {}
    for mode in modes_of(files, top):
        modes.setdefault((mode.mode, mode.group), mode)
    (pin / ACCESS).write_text(json.dumps([[mode.path, mode.mode, mode.group] for mode in modes.values()]), encoding="utf-8")
