"""A pin: the snapshot of a checkpoint's files that rotation cannot take away.

Made by the watcher the moment a checkpoint is complete. Reflink where the file system has it; else small files
are copied, since an in-place rewrite would reach through a hard link; large ones are hard-linked, and the
fingerprint taken again afterwards shows whether the trainer moved meanwhile.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from daemon.checkpoint import Fingerprint, export_files, fingerprint
from daemon.durable import clone, fsync_directory, fsync_file, remove_tree

COPY_LIMIT = 1 << 30
"""Files up to this many bytes are copied where they can't be reflinked."""


class Moved(Exception):
    """The checkpoint changed or vanished while it was pinned: look again."""


def make_pin(checkpoint: Path, target: Path, expected: Fingerprint) -> None:
    """Snapshot the export files of `checkpoint` into the new folder `target`.

    Raises Moved, leaving nothing behind, unless the files still have the fingerprint `expected` afterwards;
    OSError when there is no room or no permission, leaving nothing behind either.
    """
    remove_tree(target)
    target.mkdir(parents=True)
    try:
        for name in export_files(checkpoint):
            _snapshot(checkpoint / name, target / name)
        if fingerprint(checkpoint) != expected:
            raise Moved
        for name in export_files(target):
            fsync_file(target / name)
        fsync_directory(target)
    except FileNotFoundError as error:
        remove_tree(target)
        raise Moved from error
    except BaseException:
        remove_tree(target)
        raise


def _snapshot(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone(source, target):
        return
    if source.stat().st_size > COPY_LIMIT:
        try:
            os.link(source, target)
            return
        except OSError:
            pass  # another file system, or another user's file: the copy below is always right
    shutil.copyfile(source, target)
