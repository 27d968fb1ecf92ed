"""The ledger of a merge's finished files, by which an interrupted merge is resumed.

Called by `handlers.merge.engine.execute` for a merge that may be resumed. The ledger is a hidden file in the output folder, is replaced
atomically after each finished file, and is removed when the merge is done. A file is kept if the ledger was written for exactly the
same merge, names the file, and has its SHA-256; everything else in the folder is made again.
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
from handlers.merge.weights.base_digest import OnBytes, digest_file
from handlers.models.folder import ModelFolder

LEDGER = ".merge-progress.json"
VERSION = 1
ENGINE = 3
"""Raised whenever the streaming merge writes other bytes for the same input."""


States = dict[str, list[int]]
"""Name of a weight file → its `file_state`."""


def file_state(path: Path) -> list[int]:
    """Identifies the state of a file, also after a reboot: inode, size, mtime in nanoseconds."""
    found = os.stat(path)
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def file_states(model: ModelFolder) -> States:
    """The states of the model's weight files now."""
    return {name: file_state(model.path / name) for name in model.files.names}


def purpose(adapters: Sequence[Adapter], plan: Any, states: States) -> dict[str, Any]:
    """Everything that determines the bytes of the merged files, as a JSON value: base, adapters, plan, and the software.

    `plan`: a JSON value that says what is done.
    """
    import torch

    return {
        "engine": ENGINE,
        "torch": str(torch.__version__),
        "cpu": cpu.here().key,  # the last bit of the math library's sums depends on it
        "base": states,
        "adapters": [
            {path.name: sha256_file(path) for path in (adapter.folder / "adapter_config.json", adapter.file)} for adapter in adapters
        ],
        "plan": digest_of(plan),
    }


def clear(folder: Path, keep: Collection[str] = ()) -> None:
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
        self, folder: Path, made_for: dict[str, Any], names: Collection[str], reading: Callable[[str], OnBytes], keep: Collection[str] = ()
    ) -> None:
        """Find out which of the files `names` in `folder` are complete; remove everything else but the entries `keep`.

        `reading(name)` returns what is called with the number of bytes that were read of a file.
        """
        self.digests: dict[str, str] = {}
        """File → SHA-256, for every finished file."""
        self._folder = folder
        self._made_for = made_for
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        for name, entry in self._read().items():
            if name in names and self._is_complete(name, entry, reading):
                self.digests[name], self._sizes[name] = entry["sha256"], entry["size"]
        self.kept = tuple(sorted(self.digests))
        """Files that an earlier attempt finished."""
        self.kept_bytes = sum(self._sizes.values())
        clear(folder, keep=(*self.kept, *keep))
        self._write()
        point("merge.ledger.opened")

    def record(self, name: str) -> None:
        """Flush a finished file to disk and write it into the ledger. May be called by several threads."""
        path = self._folder / name
        fsync_file(path)
        point("merge.shard.synced")
        digest = digest_file(path)
        with self._lock:
            self.digests[name], self._sizes[name] = digest, path.stat().st_size
            self._write()
            point("merge.shard.recorded")

    def remove(self) -> None:
        """Remove the ledger, when the merge is done."""
        (self._folder / LEDGER).unlink()
        fsync_directory(self._folder)
        point("merge.ledger.removed")

    def _read(self) -> dict[str, dict[str, Any]]:
        """File → entry of the ledger in the folder; empty when there is none, or one of another merge or version."""
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

    def _is_complete(self, name: str, entry: dict[str, Any], reading: Callable[[str], OnBytes]) -> bool:
        path = self._folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != entry["size"]:
            return False
        return bool(digest_file(path, reading(name)) == entry["sha256"])
