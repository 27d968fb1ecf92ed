"""Brings a finished file to another name of ours: by hard link where only we know both names, else by reflink or copy.

Used by both wings. What is published is a plain file with one link: some readers refuse others (onnx calls them an attack), and whoever
writes into a published file must not reach anything else by it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.disk.files import clone, fsync_file

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


def place(source: Path, target: Path) -> str:
    """Put the contents of `source` at the new path `target` as cheaply as is safe between folders of our own.

    Returns how: "hard link", "reflink" or "copy". A hard link shares the inode: use it only where nobody rewrites either side in place. A
    file of a published export is never hard-linked, also where `source` leads there by a symlink: it has one name.
    """
    real = Path(os.path.realpath(source, strict=True))
    if not is_published(real) and hard_link(real, target):
        return "hard link"
    return duplicate(real, target)


def is_published(path: Path) -> bool:
    """Whether a path without symlinks lies in an export."""
    return any(os.path.lexists(parent / MANIFEST) for parent in path.parents)


def hard_link(source: Path, target: Path) -> bool:
    """Give a file the new name `target` too; False where the file system can't. Raises OSError for all else."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return False
    return True


def copy_access(source: Path, target: Path) -> None:
    """Give `target` the mode and, as far as this user may, the group of `source`. Raises OSError."""
    status = os.stat(source)
    with contextlib.suppress(PermissionError):
        os.chown(target, -1, status.st_gid)
    os.chmod(target, stat.S_IMODE(status.st_mode))


def duplicate(source: Path, target: Path) -> str:
    """Make the new file `target` with the contents of `source`, durable; gives "reflink" or "copy"."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone(source, target):
        how = "reflink"
    else:
        shutil.copyfile(source, target)
        how = "copy"
    fsync_file(target)
    return how
