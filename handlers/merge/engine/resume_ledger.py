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
from typing import Literal

from daemon.contract import cpu
from daemon.contract.disk.failpoints import point
from daemon.contract.disk.files import fsync_directory, fsync_file, remove_tree, sha256_file, write_atomic
from daemon.contract.values import Frozen, digest_of
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.weights.base_digest import OnBytes, digest_file
from handlers.models.folder import ModelFolder

LEDGER = ".merge-progress.json"
VERSION: Literal[1] = 1
ENGINE = 3
"""Raised whenever the streaming merge writes other bytes for the same input."""


States = dict[str, list[int]]
"""Name of a weight file → its `file_state`."""


def file_state(path: Path) -> list[int]:
    """Identify the state of a file, also after a reboot: inode, size, mtime in nanoseconds."""
    status = os.stat(path)
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def file_states(model: ModelFolder) -> States:
    """Return the states of the model's weight files now."""
    return {name: file_state(model.path / name) for name in model.files.names}


class Purpose(Frozen):
    """Everything that determines the bytes of the merged files: the software, base, adapters, and plan."""

    engine: int = ENGINE
    torch: str
    cpu: list[str]
    """The processor: the last bit of the math library's sums depends on it."""
    base: States
    adapters: list[dict[str, str]]
    """For each adapter, the SHA-256 of each of its files."""
    plan: str
    """Digest of what is done."""


class FinishedFile(Frozen):
    """A file that is complete."""

    size: int
    """In bytes."""
    sha256: str


class _Content(Frozen):
    """What the ledger holds."""

    version: Literal[1] = VERSION
    made_for: Purpose
    files: dict[str, FinishedFile]


def purpose(adapters: Sequence[Adapter], plan: object, states: States) -> Purpose:
    """Return the purpose of a merge now. `plan`: a JSON value that says what is done."""
    import torch

    digests = [{path.name: sha256_file(path) for path in (adapter.folder / "adapter_config.json", adapter.file)} for adapter in adapters]
    return Purpose(torch=str(torch.__version__), cpu=cpu.here().key, base=states, adapters=digests, plan=digest_of(plan))


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
        self, folder: Path, made_for: Purpose, names: Collection[str], reading: Callable[[str], OnBytes], keep: Collection[str] = ()
    ) -> None:
        """Find out which of the files `names` in `folder` are complete; remove everything else but the entries `keep`.

        `reading(name)` returns what is called with the number of bytes that were read of a file.
        """
        self._folder = folder
        self._made_for = made_for
        self._lock = threading.Lock()
        self._files = {name: file for name, file in self._read().items() if name in names and self._is_complete(name, file, reading)}
        self.kept = tuple(sorted(self._files))
        """Files that an earlier attempt finished."""
        self.kept_bytes = sum(file.size for file in self._files.values())
        clear(folder, keep=(*self.kept, *keep))
        self._write()
        point("merge.ledger.opened")

    @property
    def digests(self) -> dict[str, str]:
        """File → SHA-256, for every finished file."""
        return {name: file.sha256 for name, file in self._files.items()}

    def record(self, name: str) -> None:
        """Flush a finished file to disk and write it into the ledger. May be called by several threads."""
        path = self._folder / name
        fsync_file(path)
        point("merge.shard.synced")
        digest = sha256_file(path)
        with self._lock:
            self._files[name] = FinishedFile(size=path.stat().st_size, sha256=digest)
            self._write()
            point("merge.shard.recorded")

    def remove(self) -> None:
        """Remove the ledger, when the merge is done."""
        (self._folder / LEDGER).unlink()
        fsync_directory(self._folder)
        point("merge.ledger.removed")

    def _read(self) -> dict[str, FinishedFile]:
        """Return the files that the ledger in the folder names; none when there is no ledger, or one of another merge or version."""
        try:
            content = _Content.model_validate_json((self._folder / LEDGER).read_bytes())
        except (OSError, ValueError):
            return {}
        return content.files if content.made_for == self._made_for else {}

    def _write(self) -> None:
        content = _Content(made_for=self._made_for, files=dict(sorted(self._files.items())))
        write_atomic(self._folder / LEDGER, json.dumps(content.model_dump(mode="json"), indent=1) + "\n")

    def _is_complete(self, name: str, file: FinishedFile, reading: Callable[[str], OnBytes]) -> bool:
        path = self._folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != file.size:
            return False
        return bool(digest_file(path, reading(name)) == file.sha256)
