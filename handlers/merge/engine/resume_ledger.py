"""Which files of a half-finished merge are whole: the ledger by which an interrupted merge goes on.

Called by `handlers.merge.engine.execute` for a merge that may be resumed. The ledger lies in the output folder under a hidden name, is
replaced atomically after each finished file, and goes when the merge is done. A file counts as whole when the ledger, made for
exactly this work, names it and its SHA-256 is the one in there; everything else in the folder is made again.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from daemon.contract import cpu
from daemon.contract.failpoints import point
from daemon.contract.files import fsync_directory, fsync_file, remove_tree, sha256_file, write_atomic
from daemon.contract.values import digest_of
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.weights.base_digest import Beat, digest_file

LEDGER = ".merge-progress.json"
VERSION = 1
ENGINE = 3
"""Raised whenever the streaming merge writes other bytes for the same input."""


States = dict[str, list[int]]
"""Name of a base's file → its `file_state`."""


def file_state(path: Path) -> list[int]:
    """What tells one state of a base's file from another and outlives a reboot: inode, size, mtime in nanoseconds."""
    found = os.stat(path)
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def purpose(adapters: Sequence[Adapter], plan: Any, states: States) -> dict[str, Any]:
    """What determines every byte of the merged files, as a JSON value: base, adapters, what is done with them, by what.

    `plan`: a JSON value that says what is done.
    """
    import torch

    return {
        "engine": ENGINE,
        "torch": str(torch.__version__),
        "cpu": cpu.here().key,  # the library's sums are another's in the last bit
        "base": states,
        "adapters": [
            {path.name: sha256_file(path) for path in (adapter.folder / "adapter_config.json", adapter.file)} for adapter in adapters
        ],
        "plan": digest_of(plan),
    }


def sweep(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove everything in `folder` but the entries named in `keep`."""
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink()


class Ledger:
    """The finished files of one merge; opened once, before the merge writes anything."""

    def __init__(
        self, folder: Path, made_for: dict[str, Any], names: Collection[str], beat: Callable[[str], Beat], spared: Collection[str] = ()
    ) -> None:
        """Find out which of `names` in `folder` are whole, remove the rest but for the entries `spared`.

        `beat(name)` gives who is told of bytes that were read.
        """
        self.digests: dict[str, str] = {}
        """File → SHA-256, for every file that is whole."""
        self._folder = folder
        self._made_for = made_for
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        for name, entry in self._read().items():
            if name in names and self._is_whole(name, entry, beat):
                self.digests[name], self._sizes[name] = entry["sha256"], entry["size"]
        self.kept = tuple(sorted(self.digests))
        """Files that an earlier attempt finished."""
        self.kept_bytes = sum(self._sizes.values())
        sweep(folder, keep=(*self.kept, *spared))
        self._write()
        point("merge.ledger.opened")

    def record(self, name: str) -> None:
        """Make a finished file durable and note it. For several threads."""
        path = self._folder / name
        fsync_file(path)
        point("merge.shard.synced")
        digest = digest_file(path)
        with self._lock:
            self.digests[name], self._sizes[name] = digest, path.stat().st_size
            self._write()
            point("merge.shard.recorded")

    def remove(self) -> None:
        """The merge is done: from here on nothing of it can be resumed."""
        (self._folder / LEDGER).unlink()
        fsync_directory(self._folder)
        point("merge.ledger.removed")

    def _read(self) -> dict[str, dict[str, Any]]:
        """File → entry of the ledger in the folder; empty when there is none, or one of other work or another version."""
        try:
            value = json.loads((self._folder / LEDGER).read_bytes())
            if value["version"] != VERSION or value["made_for"] != self._made_for:
                return {}
            return {str(name): {"size": int(entry["size"]), "sha256": str(entry["sha256"])} for name, entry in value["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def _write(self) -> None:
        files = {name: {"size": self._sizes[name], "sha256": digest} for name, digest in sorted(self.digests.items())}
        value = {"version": VERSION, "made_for": self._made_for, "files": files}
        write_atomic(self._folder / LEDGER, json.dumps(value, indent=1) + "\n")

    def _is_whole(self, name: str, entry: dict[str, Any], beat: Callable[[str], Beat]) -> bool:
        path = self._folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != entry["size"]:
            return False
        return bool(digest_file(path, beat(name)) == entry["sha256"])
